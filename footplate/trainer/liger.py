"""Liger's kernels, put into a model of transformers: less memory and time on a GPU, the same but for rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from footplate.trainer import adapters


def use_liger_kernels(model: nn.Module, config: dict[str, Any] | None, device: torch.device) -> None:
    """In place. Which kernels: `rope`, `rms_norm`, `swiglu`, `cross_entropy`, `fused_linear_cross_entropy`, …"""
    whole = adapters.without(model)
    if not hasattr(getattr(whole, "config", None), "model_type"):
        raise ValueError(
            f"use_liger_kernel is for models of transformers, and {type(whole).__name__} is none: leave it out"
        )
    if device.type == "cpu":
        raise ValueError("use_liger_kernel needs a GPU, and this run is on the CPU: leave it out here")
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        raise ImportError("use_liger_kernel needs the extra liger: pip install 'footplate[liger]'") from error
    _apply_liger_kernel_to_instance(model=whole, **(config or {}))
