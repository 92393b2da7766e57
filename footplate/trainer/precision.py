"""Numeric precision: autocast, the loss scale of fp16, fp8, TF32, half-precision evaluation. Also torch.compile.

Functions and objects are selected when training is set up, so that a step does not check which of them are on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.launcher import launched_precision

Precision = Literal["no", "bf16", "fp16", "fp8"]
# fp8 applies to the products of linear layers; the rest computes in bfloat16.
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
_FP8_BACKEND = "ACCELERATE_FP8_BACKEND"


def precision_of(args: Any) -> Precision:
    """Returns the precision that the arguments set, or else the one that Accelerate's launcher sets."""
    if args.bf16 or args.fp16:
        return "bf16" if args.bf16 else "fp16"
    precision: Any = launched_precision()
    if precision == "fp8":
        require_fp8(on_gpu=torch.cuda.is_available() and not getattr(args, "use_cpu", False))
    return precision  # type: ignore[no-any-return]


def require_fp8(*, on_gpu: bool) -> None:
    """Raises an error if fp8 cannot work on this machine. Accelerate would silently train in fp16 instead."""
    from accelerate.utils import is_torchao_available

    backend = os.environ.get(_FP8_BACKEND, "AO").upper()
    if backend not in ("AO", "NO"):
        raise NotAvailableYet(
            f"{_FP8_BACKEND} is {backend}, which is not supported: it changes the model's layers and checkpoints",
            hint=f"set {_FP8_BACKEND}=AO, with the extra torchao",
        )
    if not is_torchao_available():
        raise ImportError("fp8 needs the extra torchao: pip install 'footplate[torchao]'")
    if on_gpu and (capability := torch.cuda.get_device_capability()) < (8, 9):
        raise ValueError(
            f"fp8 needs a GPU of the Ada or Hopper generation, with compute capability 8.9 or more, and this one has "
            f"{capability[0]}.{capability[1]}: use bf16"
        )


def fp8_handlers(precision: Precision) -> list[Any]:
    """Returns Accelerate's settings for fp8, or an empty list for another precision.

    The all-gather in fp8 is off. With it, Accelerate would replace the parameters, and the optimizer would keep the
    old ones.
    """
    if precision != "fp8":
        return []
    from accelerate.utils import AORecipeKwargs

    return [AORecipeKwargs(enable_fsdp_float8_all_gather=False)]


def compute_in_fp8(model: nn.Module) -> None:
    """Converts the model's linear layers to fp8 in place, as Accelerate's `prepare` does."""
    from accelerate.utils import convert_model_to_fp8_ao, has_ao_layers

    if not has_ao_layers(model):
        convert_model_to_fp8_ao(model, config=fp8_handlers("fp8")[0].config)
    if not has_ao_layers(model):  # without this check, unsupported layers would silently compute in bfloat16
        raise ValueError(
            f"fp8 is requested, but no layer of the model, a {type(model).__name__}, can be computed in it: it needs "
            "linear layers between the first and the last, of sizes that are multiples of 16. Use bf16"
        )


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context in which matrix products use half precision, and sums and losses single precision."""
    if precision == "no":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])


def use_tf32(is_on: bool | None) -> None:
    """Switches TF32 on or off. With TF32, products of float32 matrices have 10 bits of mantissa and are faster."""
    if is_on is None:
        return
    can = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8
    if is_on and not can:
        raise ValueError("--tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7: leave tf32 out here")
    if can:
        backends: Any = torch.backends
        backends.fp32_precision = "tf32" if is_on else "ieee"


class LossScale:
    """Scales the loss for fp16, so that small gradients do not round to zero, and scales gradients back.

    A step whose gradients overflowed is skipped, and the scale is halved; after enough steps without overflow it
    doubles. If `clip` is not called, `step` scales the gradients back. `step` waits for the device, to set `skipped`.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device | str, **options: Any) -> None:
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler(torch.device(device).type, **options)
        self.skipped = False
        """True if the last step was skipped. Schedules do not move then."""

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


@contextlib.contextmanager
def evaluating_in(model: nn.Module, precision: Precision) -> Iterator[nn.Module]:
    """Converts the weights to half precision inside the `with` block, and then restores them exactly."""
    if precision == "no":
        yield model
        return
    originals = {name: value.data for name, value in [*model.named_parameters(), *model.named_buffers()]}
    try:
        yield model.to(_DTYPES[precision])
    finally:
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            value.data = originals[name]


def compile_model(model: nn.Module, backend: str | None = None, mode: str | None = None) -> None:
    """Makes the model compile itself in its first forward. Its class and the names in its state dict do not change."""
    backends = torch.compiler.list_backends(exclude_tags=()) if backend is not None else []
    if backend is not None and backend not in backends:
        raise ValueError(f"no backend of torch.compile named {backend!r}. Known: {', '.join(sorted(backends))}")
    model.compile(backend=backend or "inductor", mode=mode)
