"""Schedule-free AdamW and SGD (arXiv:2405.15682) average the weights instead of lowering the learning rate.

There are three sets of weights. z makes the steps, x is the average of z and the final result, and y lies between them.
Gradients are computed at y. The parameters hold y in training and x in evaluation; `train()` and `eval()` switch
between them, and the Trainer calls both. A checkpoint in training holds y, and z in the optimizer's state, so that a
resumed run equals an uninterrupted one.

A checkpoint that is saved at the step of an evaluation has x, and so has the final model. If a job loads only the
weights of another checkpoint, to serve them for example, x is computed from y and z. transformers takes y.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from footplate.trainer.optimizers.groups import with_gradients


class _ScheduleFree(Optimizer):
    """The base of AdamWScheduleFree and SGDScheduleFree: it averages the weights.

    The parameters hold the training weights y or the averaged weights x, which the module's docstring explains.
    """

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if defaults["lr"] < 0:
            raise ValueError(f"the lr of {type(self).__name__} must be 0 or more. It is {defaults['lr']}")
        super().__init__(
            params,
            {**defaults, "k": 0, "train_mode": False, "weight_sum": 0.0, "lr_max": -1.0, "scheduled_lr": 0.0},
        )

    @torch.no_grad()
    def eval(self) -> None:
        """Puts the averaged weights x into the parameters, in place of the training weights y."""
        for group in self.param_groups:
            if group["train_mode"]:
                self._pull_to_z(group, 1 - 1 / self._towards(group))
                group["train_mode"] = False

    @torch.no_grad()
    def train(self) -> None:
        """Puts the training weights y into the parameters, in place of the average x."""
        for group in self.param_groups:
            if not group["train_mode"]:
                self._pull_to_z(group, 1 - self._towards(group))
                group["train_mode"] = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if not all(group["train_mode"] for group in self.param_groups):
            raise RuntimeError(
                f"{type(self).__name__} holds its averaged weights: call optimizer.train() before training continues, "
                "and optimizer.eval() before evaluating"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        number = group["k"] + 1
        warmup = min(1.0, number / group["warmup_steps"]) if group["warmup_steps"] else 1.0
        rate = group["scheduled_lr"] = group["lr"] * warmup
        group["lr_max"] = max(rate, group["lr_max"])
        weight = number ** group["r"] * group["lr_max"] ** group["weight_lr_power"]
        group["weight_sum"] += weight
        share = weight / group["weight_sum"] if group["weight_sum"] else 0.0
        for parameters, gradients in with_gradients(group, type(self).__name__):
            for parameter in parameters:
                if "z" not in self.state[parameter]:
                    self.state[parameter]["z"] = torch.clone(parameter, memory_format=torch.preserve_format)
            targets = [self.state[parameter]["z"] for parameter in parameters]
            directions = self._directions(group, parameters, gradients, number)
            if group["weight_decay"] != 0:
                torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
            # Moves y directly, without computing x.
            torch._foreach_lerp_(parameters, targets, weight=share)
            torch._foreach_add_(parameters, directions, alpha=rate * (self._towards(group) * (1 - share) - 1))
            torch._foreach_sub_(targets, directions, alpha=rate)
        group["k"] = number

    def _pull_to_z(self, group: dict[str, Any], share: float) -> None:
        for parameter in group["params"]:
            if "z" in self.state[parameter]:
                parameter.lerp_(end=self.state[parameter]["z"].to(parameter.device), weight=share)

    def _towards(self, group: dict[str, Any]) -> float:
        """Returns how far y lies from z towards x, from 0 to 1."""
        raise NotImplementedError

    def _directions(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor], number: int
    ) -> list[Tensor]:
        """Returns the directions of the step as new tensors, because the gradients may be read after the step."""
        raise NotImplementedError


class AdamWScheduleFree(_ScheduleFree):
    """Schedule-free AdamW needs a rate up to ten times AdamW's, warm-up, and lr_scheduler_type constant."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.0025,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
    ) -> None:
        if not 0 < betas[0] < 1:
            raise ValueError(f"schedule-free averaging needs a beta1 between 0 and 1. It is {betas[0]}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "warmup_steps": warmup_steps, "r": r, "weight_lr_power": weight_lr_power})

    def _towards(self, group: dict[str, Any]) -> float:
        return float(group["betas"][0])

    def _directions(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor], number: int
    ) -> list[Tensor]:
        for parameter in parameters:
            if "exp_avg_sq" not in self.state[parameter]:
                self.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        squares = [self.state[parameter]["exp_avg_sq"] for parameter in parameters]
        beta2 = group["betas"][1]
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        size = torch._foreach_div(squares, 1 - beta2**number)
        torch._foreach_sqrt_(size)
        torch._foreach_add_(size, group["eps"])
        return list(torch._foreach_div(gradients, size))


class SGDScheduleFree(_ScheduleFree):
    """Schedule-free SGD needs a rate ten to fifty times that of SGD."""

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
    ) -> None:
        if not 0 < momentum < 1:
            raise ValueError(f"schedule-free averaging needs a momentum between 0 and 1. It is {momentum}")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "warmup_steps": warmup_steps, "r": r, "weight_lr_power": weight_lr_power})

    def _towards(self, group: dict[str, Any]) -> float:
        return float(group["momentum"])

    def _directions(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor], number: int
    ) -> list[Tensor]:
        return [gradient.clone() for gradient in gradients]


SCHEDULE_FREE: dict[str, Callable[..., Any]] = {
    "schedule_free_adamw": AdamWScheduleFree,
    "schedule_free_sgd": SGDScheduleFree,
}
"""The optimizers of this module by their names in the argument `optim`."""


def is_in_training(groups: Sequence[dict[str, Any]]) -> bool:
    """Returns True for the groups of a schedule-free optimizer while the model has the weights of training.

    Only schedule-free optimizers, also those of the package `schedulefree`, have `train_mode` in their groups.
    """
    return any(group.get("train_mode") for group in groups)
