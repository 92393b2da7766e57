"""Lion (arXiv:2302.06675) steps by the sign of a momentum. Its state needs half of Adam's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from footplate.trainer.optimizers.groups import with_gradients


class Lion(Optimizer):
    """Lion needs a learning rate about ten times smaller than AdamW's, and a weight decay ten times larger."""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        if lr < 0:
            raise ValueError(f"Lion's lr must be 0 or more. It is {lr}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"Lion's betas must lie in [0, 1). They are {betas}")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameters, gradients in with_gradients(group, type(self).__name__):
                self._step_many(group, parameters, gradients)
        return loss

    def _step_many(self, group: dict[str, Any], parameters: list[Any], gradients: list[Any]) -> None:
        for parameter in parameters:
            if "exp_avg" not in self.state[parameter]:
                self.state[parameter]["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        moments = [self.state[parameter]["exp_avg"] for parameter in parameters]
        for_step, for_memory = group["betas"]
        update = torch._foreach_mul(moments, for_step)
        torch._foreach_add_(update, gradients, alpha=1 - for_step)
        torch._foreach_sign_(update)
        if group["weight_decay"] != 0:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, update, alpha=-group["lr"])
        torch._foreach_mul_(moments, for_memory)
        torch._foreach_add_(moments, gradients, alpha=1 - for_memory)
