"""Adversarial training in two overrides: the loss of a batch, and of the same batch moved to where it hurts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from footplate import Trainer


class Adversarial(Trainer):
    """Each step also learns from its inputs, moved a little along the sign of their gradient."""

    reach = 0.05

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        loss = nn.functional.mse_loss(outputs["logits"], inputs["labels"])
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        moved = self._prepare_inputs(inputs)["x"].clone().requires_grad_()
        with self.compute_loss_context_manager():
            (slope,) = torch.autograd.grad(self.compute_loss(model, {**inputs, "x": moved}), moved)
        harder = {**inputs, "x": (moved + self.reach * slope.sign()).detach()}
        plain = super().training_step(model, inputs, num_items_in_batch)
        return plain + super().training_step(model, harder, num_items_in_batch)
