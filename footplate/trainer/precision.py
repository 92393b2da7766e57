"""In which numbers is computed: autocast, fp16's loss scale, fp8, TF32, half-precision evaluation, compilation.

Each is a function or an object of its own, chosen at set-up; a step asks none of them whether they are on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.launcher import launched_precision

Precision = Literal["no", "bf16", "fp16", "fp8"]
# fp8 is for the products of linear layers; around them is bfloat16.
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
_FP8_BACKEND = "ACCELERATE_FP8_BACKEND"


def precision_of(args: Any) -> Precision:
    """What the arguments ask for, one of the two halves at most; else what Accelerate's launcher was told."""
    bf16, fp16 = getattr(args, "bf16", False), getattr(args, "fp16", False)
    if bf16 and fp16:
        raise ValueError("bf16 and fp16 exclude each other: bf16 needs no loss scale, where the GPU has it")
    if bf16 or fp16:
        return "bf16" if bf16 else "fp16"
    said: Any = launched_precision()
    if said == "fp8":
        require_fp8(on_gpu=torch.cuda.is_available() and not getattr(args, "use_cpu", False))
    return said  # type: ignore[no-any-return]


def require_fp8(*, on_gpu: bool) -> None:
    """Accelerate would go on in fp16 on a GPU that has none."""
    from accelerate.utils import is_torchao_available

    backend = os.environ.get(_FP8_BACKEND, "AO").upper()
    if backend not in ("AO", "NO"):
        raise NotAvailableYet(
            f"{_FP8_BACKEND} is {backend}, which puts layers of its own into a model, and states into its files",
            hint=f"set {_FP8_BACKEND}=AO, with the extra torchao",
        )
    if not is_torchao_available():
        raise ImportError("fp8 needs the extra torchao: pip install 'footplate[torchao]'")
    if on_gpu and (found := torch.cuda.get_device_capability()) < (8, 9):
        raise ValueError(
            f"fp8 needs a GPU of Ada's or Hopper's kind, of compute capability 8.9 or more, and this one has "
            f"{found[0]}.{found[1]}: use bf16"
        )


def fp8_handlers(precision: Precision) -> list[Any]:
    """What Accelerate is told of it. By itself it would put hulls around the weights, for FSDP to gather them in eight
    bits: they would be others than those the optimizer was made for, and never learn."""
    if precision != "fp8":
        return []
    from accelerate.utils import AORecipeKwargs

    return [AORecipeKwargs(enable_fsdp_float8_all_gather=False)]


def compute_in_fp8(model: nn.Module) -> None:
    """In place, once, as Accelerate's `prepare` does it."""
    from accelerate.utils import convert_model_to_fp8_ao, has_ao_layers

    if not has_ao_layers(model):
        convert_model_to_fp8_ao(model, config=fp8_handlers("fp8")[0].config)
    if not has_ao_layers(model):  # what it passes over would be computed in bfloat16, and nobody would know
        raise ValueError(
            f"fp8 is asked for, and no layer of the model, a {type(model).__name__}, can be computed in it: it takes "
            "linear layers between the first and the last, of sizes that are multiples of 16. Use bf16"
        )


def autocast(precision: Precision, device: torch.device, *, cache_enabled: bool = True) -> AbstractContextManager[Any]:
    """Matrix products in half precision; sums and losses stay whole."""
    if precision == "no":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision], cache_enabled=cache_enabled)


def use_tf32(wanted: bool | None) -> None:
    """Single-precision products with ten bits of mantissa, some eight times faster. None leaves torch's own setting."""
    if wanted is None:
        return
    can = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8
    if wanted and not can:
        raise ValueError("--tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7: leave tf32 out here")
    if can:
        backends: Any = torch.backends
        backends.fp32_precision = "tf32" if wanted else "ieee"


class LossScale:
    """fp16's smallest gradients round to zero: the loss is scaled up before backward, and gradients down after it.

    A step whose gradients overflowed is left out, and the scale halved; after long enough without one it doubles.
    Where `clip` is not called, the step takes the scale off itself. Learning whether a step was left out waits for
    the device.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device | str, **options: Any) -> None:
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler(torch.device(device).type, **options)
        self.skipped = False
        """Whether the last step was left out; schedules then stay where they are."""
        self.steps_skipped = 0

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def clip(self, parameters: Any, max_norm: float) -> Tensor:
        self.scaler.unscale_(self.optimizer)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def step(self) -> None:
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.skipped = self.scaler.get_scale() < before
        self.steps_skipped += self.skipped

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        """As the reference writes it to scaler.pt."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scaler.load_state_dict(dict(state))


@contextlib.contextmanager
def evaluating_in(model: nn.Module, precision: Precision) -> Iterator[nn.Module]:
    """The weights themselves in half precision for an evaluation: half the memory. They come back to the last bit."""
    if precision == "no":
        yield model
        return
    kept = {name: value.data for name, value in [*model.named_parameters(), *model.named_buffers()]}
    try:
        yield model.to(_DTYPES[precision])
    finally:
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            value.data = kept[name]


def compile_model(model: nn.Module, backend: str | None = None, mode: str | None = None, **options: Any) -> nn.Module:
    """In place: the same object, class and names in its state, and `forward` compiled when it is first called."""
    known = torch.compiler.list_backends(exclude_tags=()) if backend is not None else []
    if backend is not None and backend not in known:
        raise ValueError(f"no backend of torch.compile named {backend!r}. Known: {', '.join(sorted(known))}")
    model.compile(backend=backend or "inductor", mode=mode, **options)
    return model
