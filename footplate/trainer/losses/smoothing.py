"""Label smoothing over a model's logits, with exactly Hugging Face's results."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from footplate.trainer.losses.labels import IGNORE
from footplate.trainer.losses.loss import logits_of, shifted


@dataclass
class LabelSmoother:
    """Cross entropy in which a share `epsilon` of each label is spread over all classes."""

    epsilon: float = 0.1
    ignore_index: int = IGNORE

    def __call__(
        self,
        model_output: Any,
        labels: Tensor,
        shift_labels: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        logits = model_output[0] if isinstance(model_output, tuple) else logits_of(model_output)
        if shift_labels:
            logits, labels = shifted(logits, labels)
        costs = -functional.log_softmax(logits, dim=-1)
        if labels.dim() == costs.dim() - 1:
            labels = labels.unsqueeze(-1)
        ignored = labels.eq(self.ignore_index)
        # Ignored labels are negative and would fail in gather, so they become class 0 and are then set to zero.
        nll = costs.gather(dim=-1, index=labels.clamp(min=0)).masked_fill_(ignored, 0.0)
        # Summed in single precision, because a sum over a vocabulary overflows fp16.
        smoothed = costs.sum(dim=-1, keepdim=True, dtype=torch.float32).masked_fill_(ignored, 0.0)
        count = self._count(ignored, num_items_in_batch)
        return (1 - self.epsilon) * (nll.sum() / count) + self.epsilon * (smoothed.sum() / (count * costs.shape[-1]))

    @staticmethod
    def _count(ignored: Tensor, num_items: Tensor | int | None) -> Tensor | int:
        """Returns the item count of the whole accumulation window if it is known, else of this micro-batch."""
        if num_items is None:
            return ignored.numel() - ignored.long().sum()
        return num_items.to(ignored.device) if isinstance(num_items, Tensor) else num_items


def label_smoother(epsilon: float, model: nn.Module) -> LabelSmoother | None:
    """Returns the loss with label smoothing for `label_smoothing_factor`, or None if the factor is 0.

    A sample with several labels has no single label to smooth. Such models get None and a warning, as in transformers.
    """
    if not epsilon:
        return None
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        warnings.warn(
            f"Label smoothing is not compatible with multi-label classification: label_smoothing_factor {epsilon} is "
            f"switched off for {type(model).__name__}. Set it to 0",
            UserWarning,
            stacklevel=2,
        )
        return None
    return LabelSmoother(epsilon)
