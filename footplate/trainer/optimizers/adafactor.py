"""Adafactor (arXiv:1804.04235) stores the second moment of a matrix as one value per row and per column.

Results and the names in its state equal Hugging Face's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

_HALF = (torch.float16, torch.bfloat16)


class Adafactor(Optimizer):
    """Adafactor with or without its own learning rate.

    With `relative_step` it computes its own rate, and `lr` must be None; the Trainer sets `relative_step` to False.
    `scale_parameter` scales steps by the size of the weights. Without `beta1` there is no first moment.
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        if lr is not None and relative_step:
            raise ValueError("Cannot combine manual `lr` and `relative_step=True` options")
        if warmup_init and not relative_step:
            raise ValueError("`warmup_init=True` requires `relative_step=True`")
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
            "warmup_init": warmup_init,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(group, parameter)
        return loss

    def _step_one(self, group: dict[str, Any], parameter: Tensor) -> None:
        grad = parameter.grad
        assert grad is not None
        if grad.is_sparse:
            raise RuntimeError("Adafactor does not support sparse gradients: make the embedding with sparse=False")
        grad = grad.float() if grad.dtype in _HALF else grad
        weights = parameter.float() if parameter.dtype in _HALF else parameter
        state = self.state[parameter]
        self._prepare(state, group, grad)
        state["step"] += 1
        state["RMS"] = _rms(weights)
        rate = self._get_lr(group, state)
        update = self._update(state, group, grad)
        update.div_((_rms(update) / group["clip_threshold"]).clamp_(min=1.0)).mul_(rate)
        if group["beta1"] is not None:
            update = state["exp_avg"].mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
        if group["weight_decay"] != 0:
            weights.add_(weights, alpha=-group["weight_decay"] * rate)
        weights.add_(-update)
        if parameter.dtype in _HALF:
            parameter.copy_(weights)

    @staticmethod
    def _prepare(state: dict[str, Any], group: dict[str, Any], grad: Tensor) -> None:
        """Creates a parameter's state, or moves a loaded state to the gradient's device and dtype."""
        if not state:
            state["step"] = 0
            if group["beta1"] is not None:
                state["exp_avg"] = torch.zeros_like(grad)
            if grad.dim() >= 2:
                state["exp_avg_sq_row"] = grad.new_zeros(grad.shape[:-1])
                state["exp_avg_sq_col"] = grad.new_zeros(grad.shape[:-2] + grad.shape[-1:])
            else:
                state["exp_avg_sq"] = torch.zeros_like(grad)
            state["RMS"] = 0
            return
        for name, value in state.items():
            if name.startswith("exp_avg"):
                state[name] = value.to(grad)

    @staticmethod
    def _update(state: dict[str, Any], group: dict[str, Any], grad: Tensor) -> Tensor:
        keep = 1.0 - math.pow(state["step"], group["decay_rate"])
        squares = grad**2 + group["eps"][0]
        if grad.dim() < 2:
            state["exp_avg_sq"].mul_(keep).add_(squares, alpha=1.0 - keep)
            return state["exp_avg_sq"].rsqrt().mul_(grad)  # type: ignore[no-any-return]
        rows, columns = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
        rows.mul_(keep).add_(squares.mean(dim=-1), alpha=1.0 - keep)
        columns.mul_(keep).add_(squares.mean(dim=-2), alpha=1.0 - keep)
        by_row = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
        return torch.mul(by_row, columns.unsqueeze(-2).rsqrt()).mul_(grad)

    @staticmethod
    def _get_lr(param_group: dict[str, Any], param_state: dict[str, Any]) -> Any:
        rate = param_group["lr"]
        if param_group["relative_step"]:
            least = 1e-6 * param_state["step"] if param_group["warmup_init"] else 1e-2
            rate = min(least, 1.0 / math.sqrt(param_state["step"]))
        scale = max(param_group["eps"][1], param_state["RMS"]) if param_group["scale_parameter"] else 1.0
        return scale * rate


def _rms(tensor: Tensor) -> Tensor:
    return tensor.norm(2) / (tensor.numel() ** 0.5)  # type: ignore[no-any-return]


class AdafactorSchedule(LambdaLR):
    """A schedule that only reports the learning rate that Adafactor computes itself, so that the rate is logged."""

    def __init__(self, optimizer: Adafactor, initial_lr: float = 0.0) -> None:
        for group in optimizer.param_groups:
            group["initial_lr"] = initial_lr
        super().__init__(optimizer, lambda _: initial_lr)
        for group in optimizer.param_groups:
            del group["initial_lr"]

    def get_lr(self) -> list[Any]:
        optimizer: Any = self.optimizer
        rates = [
            optimizer._get_lr(group, optimizer.state[group["params"][0]])
            for group in optimizer.param_groups
            if group["params"][0].grad is not None
        ]
        return rates or self.base_lrs
