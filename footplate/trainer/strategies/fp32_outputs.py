"""Converts the outputs of a model in half precision to float32, unless nobody reads them."""

from __future__ import annotations

import functools
from types import MethodType
from typing import Any

from accelerate.utils.operations import ConvertOutputsToFp32, convert_to_fp32
from torch import nn


class Fp32Outputs:
    """Converts the outputs of forward to float32, as Accelerate does, unless a step reads nothing but their loss.

    The logits of a language model are the largest tensor of a step, so a copy of them costs gigabytes and time.
    """

    is_on = False
    """True once this object converts the outputs of a model."""
    are_read = True

    def convert(self, outputs: Any) -> Any:
        return convert_to_fp32(outputs) if self.are_read else outputs

    def replace_conversion(self, model: nn.Module) -> nn.Module:
        """Replaces the conversion that Accelerate's `prepare_model` has put around forward."""
        forward = vars(model).get("forward")
        accelerates = getattr(forward, "__wrapped__", None)
        if isinstance(accelerates, ConvertOutputsToFp32):
            original_forward = accelerates.model_forward

            @functools.wraps(original_forward)
            def converted(*args: Any, **kwargs: Any) -> Any:
                return self.convert(original_forward(*args, **kwargs))

            self.is_on = True
            model.forward = MethodType(converted, model) if isinstance(forward, MethodType) else converted
        return model
