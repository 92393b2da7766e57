"""An op of one's own inside of a model: C++ and CUDA, with a gradient of its own, under autocast, in the Trainer.

    python examples/custom-op/smooth_abs.py

The first call compiles (some half a minute); later ones find what it built, as long as source and torch are the same.
It needs a C++ compiler and ninja (`pip install ninja`), and for the CUDA half nvcc.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import cpp_extension

HERE = Path(__file__).parent


@functools.cache
def extension() -> Any:
    """`torch.ops.footplate_example`, compiled at most once for this source, this torch and these devices."""
    sources = [HERE / "smooth_abs.cpp", *([HERE / "smooth_abs_cuda.cu"] if torch.cuda.is_available() else [])]
    mark = hashlib.sha256(b"".join(file.read_bytes() for file in sources) + torch.__version__.encode()).hexdigest()[:12]
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR", tempfile.gettempdir())) / f"footplate-smooth-abs-{mark}"
    folder.mkdir(parents=True, exist_ok=True)
    # ninja may be a package of this environment, whose programs are not on the PATH of who runs it by its full name.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    cpp_extension.load(
        name=f"smooth_abs_{mark}",
        sources=[str(file) for file in sources],
        build_directory=str(folder),
        extra_cflags=["-O2"],
        is_python_module=False,
    )
    return torch.ops.footplate_example


class SmoothAbs(torch.autograd.Function):
    """The op. Autocast gives it single precision, because squares of small numbers underflow in half precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: float) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.delta = delta
        return extension().smooth_abs(x, delta)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return extension().smooth_abs_backward(grads[0], x, ctx.delta), None


def smooth_abs(x: Tensor, delta: float = 0.1) -> Tensor:
    """|x| with a round bottom. Autocast is left for the op, and the result is single precision."""
    with torch.autocast(x.device.type, enabled=False):
        return SmoothAbs.apply(x.float() if x.dtype in (torch.bfloat16, torch.float16) else x, delta)  # type: ignore[no-any-return,no-untyped-call]


class Net(nn.Module):
    """A regression whose loss is the op."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": smooth_abs(logits - labels).mean(), "logits": logits}


def train(folder: str, **values: Any) -> list[float]:
    """Losses of a short run."""
    from footplate import Trainer, TrainingArguments, set_seed

    set_seed(0)
    x = torch.randn(64, 8)
    rows = [{"x": row, "labels": row[:4].abs()} for row in x]
    args = TrainingArguments(
        folder,
        **{
            "max_steps": 30,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            **values,
        },
    )
    trainer = Trainer(Net(), args, train_dataset=rows)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        losses = train(place, bf16=True)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
