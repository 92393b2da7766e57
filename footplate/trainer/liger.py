"""Puts Liger's kernels into a model of transformers. They save memory and time; results differ by rounding only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from footplate.trainer import adapters


def use_liger_kernels(model: nn.Module, config: dict[str, Any] | None, device: torch.device) -> None:
    """Replaces parts of the model in place. The config selects kernels, such as `rope`, `rms_norm` or `swiglu`."""
    base = adapters.base_model(model)
    if not hasattr(getattr(base, "config", None), "model_type"):
        raise ValueError(
            f"use_liger_kernel is for models of transformers, and {type(base).__name__} is not one: leave it out"
        )
    if device.type == "cpu":
        raise ValueError("use_liger_kernel needs a GPU, and this run is on the CPU: leave it out here")
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        raise ImportError("use_liger_kernel needs the extra liger: pip install 'footplate[liger]'") from error
    _apply_liger_kernel_to_instance(model=base, **(config or {}))
