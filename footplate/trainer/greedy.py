"""GreedyLR: raises the rate while a metric improves, lowers it when it does not (arXiv:2512.14527).

Results and the names in its state equal Hugging Face's, so that it can continue a checkpoint of transformers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from torch.optim import Optimizer


class StreamingAverage:
    """The mean of the last `window_size` values."""

    def __init__(self, window_size: int) -> None:
        self.window_size = window_size
        self.values: deque[float] = deque()
        self.sum = 0.0

    def streamavg(self, value: float) -> float:
        self.values.append(value)
        self.sum += value
        if len(self.values) > self.window_size:
            self.sum -= self.values.popleft()
        return self.sum / len(self.values)

    def state_dict(self) -> dict[str, Any]:
        return {"window_size": self.window_size, "values": list(self.values), "sum": self.sum}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.window_size = state_dict.get("window_size", self.window_size)
        self.values = deque(state_dict.get("values", ()))
        self.sum = state_dict.get("sum", 0.0)


class GreedyLR:
    """Changes the rate after more than `patience` good or bad evaluations in a row. Call `step(metric)` after each.

    `factor` multiplies the rate to lower it and divides it to raise it, within `min_lr` and `max_lr`. After
    `reset_start` reductions with every group at its minimum, all groups start again from their first rates.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.95,
        patience: int = 10,
        threshold: float = 1e-6,
        threshold_mode: Literal["rel", "abs"] = "abs",
        cooldown: int = 0,
        warmup: int = 0,
        min_lr: float | Sequence[float] = 1e-3,
        max_lr: float | Sequence[float] = 1.0,
        eps: float = 1e-8,
        verbose: bool = False,
        smooth: bool = False,
        window_size: int = 50,
        reset_start: int = 500,
    ) -> None:
        if factor >= 1.0:
            raise ValueError(f"Factor should be < 1.0. It is {factor}")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown! Known: min, max")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown! Known: rel, abs")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode, self.eps = threshold, threshold_mode, eps
        self.cooldown, self.warmup, self.verbose = cooldown, warmup, verbose
        self.smooth, self.window_size = smooth, window_size
        self.reset_start = self.reset_start_original = reset_start
        self.min_lrs = self._per_group("min_lr", min_lr)
        self.max_lrs = self._per_group("max_lr", max_lr)
        self.last_epoch = 0
        self._init_lrs = self._last_lr = self._rates()
        self._start_counting()

    def _per_group(self, name: str, value: float | Sequence[float]) -> list[float]:
        groups = len(self.optimizer.param_groups)
        if not isinstance(value, (list, tuple)):
            return [value] * groups  # type: ignore[list-item]
        if len(value) != groups:
            raise ValueError(f"expected {groups} {name}s, one per parameter group, got {len(value)}")
        return list(value)

    def _start_counting(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.num_bad_epochs = self.num_good_epochs = 0
        self.cooldown_counter = self.warmup_counter = 0
        self.reset_start = self.reset_start_original
        self._streaming_avg = StreamingAverage(self.window_size) if self.smooth else None

    def step(self, metrics: float, epoch: int | None = None) -> None:
        current = float(metrics)
        if self._streaming_avg is not None:
            current = self._streaming_avg.streamavg(current)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = self.num_good_epochs = 0
        elif self.warmup_counter > 0:
            self.warmup_counter -= 1
            self.num_bad_epochs = self.num_good_epochs = 0
        elif self.is_better(current, self.best):
            self.best = current
            self.num_bad_epochs, self.num_good_epochs = 0, self.num_good_epochs + 1
        else:
            self.num_bad_epochs, self.num_good_epochs = self.num_bad_epochs + 1, 0
        if self.num_good_epochs > self.patience:
            self._increase_lr()
            self.warmup_counter, self.num_good_epochs = self.warmup, 0
        elif self.num_bad_epochs > self.patience:
            self._reduce_lr()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates()

    def is_better(self, current: float, best: float) -> bool:
        sign = 1.0 if self.mode == "max" else -1.0
        relative = self.threshold_mode == "rel"
        bar = best * (1.0 + sign * self.threshold) if relative else best + sign * self.threshold
        return current > bar if self.mode == "max" else current < bar

    def _reduce_lr(self) -> None:
        for number, (group, floor) in enumerate(zip(self.optimizer.param_groups, self.min_lrs, strict=True)):
            lower = max(float(group["lr"]) * self.factor, floor)
            if float(group["lr"]) - lower > self.eps:
                self._set(group, number, lower, "reducing")
        if all(g["lr"] <= floor for g, floor in zip(self.optimizer.param_groups, self.min_lrs, strict=True)):
            self.reset_start -= 1
            if self.reset_start <= 0:
                self._reset()

    def _increase_lr(self) -> None:
        for number, (group, ceiling) in enumerate(zip(self.optimizer.param_groups, self.max_lrs, strict=True)):
            higher = min(float(group["lr"]) / self.factor, ceiling)
            if higher - float(group["lr"]) > self.eps:
                self._set(group, number, higher, "increasing")
        self.reset_start = self.reset_start_original

    def _set(self, group: dict[str, Any], number: int, rate: float, doing: str) -> None:
        group["lr"] = rate
        if self.verbose:
            print(f"Epoch {self.last_epoch}: {doing} learning rate of group {number} to {rate:.4e}.")

    def _reset(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._init_lrs, strict=True):
            group["lr"] = rate
        self._start_counting()
        if self.verbose:
            print("Scheduler reset to initial state.")

    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("optimizer", "_streaming_avg")}
        if self._streaming_avg is not None:
            state["_streaming_avg"] = self._streaming_avg.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        average = state_dict.get("_streaming_avg")
        vars(self).update({name: value for name, value in state_dict.items() if name != "_streaming_avg"})
        if average is not None:
            self._streaming_avg = StreamingAverage(self.window_size)
            self._streaming_avg.load_state_dict(average)
        if "_last_lr" in state_dict:
            for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
                group["lr"] = rate
