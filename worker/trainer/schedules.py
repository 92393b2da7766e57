"""How the learning rate moves: factors of the peak rate by step, with the reference's names, arguments and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau


def constant(step: int, warmup: int, total: int) -> float:
    return 1.0


def constant_with_warmup(step: int, warmup: int, total: int) -> float:
    return step / max(1, warmup) if step < warmup else 1.0


def linear(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, (total - step) / max(1, total - warmup))


def cosine(step: int, warmup: int, total: int, num_cycles: float = 0.5) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * _progress(step, warmup, total))))


def cosine_with_restarts(step: int, warmup: int, total: int, num_cycles: int = 1) -> float:
    if step < warmup:
        return step / max(1, warmup)
    progress = _progress(step, warmup, total)
    if progress >= 1.0:
        return 0.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((num_cycles * progress) % 1.0))))


def polynomial(step: int, warmup: int, total: int, *, peak: float, lr_end: float = 1e-7, power: float = 1.0) -> float:
    if step < warmup:
        return step / max(1, warmup)
    if step > total:
        return lr_end / peak
    remaining = 1 - (step - warmup) / max(1, total - warmup)
    return float((peak - lr_end) * remaining**power + lr_end) / peak


def inverse_sqrt(step: int, warmup: int, total: int, timescale: int | None = None) -> float:
    if step < warmup:
        return step / max(1, warmup)
    scale = timescale or warmup or 10_000
    return 1.0 / math.sqrt((step + scale - warmup) / scale)


def cosine_with_min_lr(
    step: int,
    warmup: int,
    total: int,
    *,
    peak: float,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> float:
    if step < warmup:
        return step / max(1, warmup)
    floor = _floor(peak, min_lr, min_lr_rate)
    factor = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * _progress(step, warmup, total)))
    return max(0.0, factor * (1 - floor) + floor)


def cosine_warmup_with_min_lr(
    step: int,
    warmup: int,
    total: int,
    *,
    peak: float,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> float:
    """Counts steps from one, and warms up from `warmup_lr_rate` of the peak."""
    now, floor = float(step), _floor(peak, min_lr, min_lr_rate)
    if now < warmup:
        if warmup_lr_rate is None:
            return (now + 1.0) / max(1.0, warmup)
        return warmup_lr_rate + (1.0 - warmup_lr_rate) * now / max(1, warmup - 1)
    progress = (now - warmup + 1.0) / max(1.0, total - warmup)
    factor = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress))
    return max(0.0, factor * (1 - floor) + floor)


def warmup_stable_decay(
    step: int,
    warmup: int,
    total: int,
    *,
    num_decay_steps: int,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> float:
    stable = total - warmup - num_decay_steps if num_stable_steps is None else num_stable_steps
    if step < warmup:
        return _shape(warmup_type, step / max(1, warmup)) * (1.0 - min_lr_ratio) + min_lr_ratio
    if step < warmup + stable:
        return 1.0
    if step >= warmup + stable + num_decay_steps:
        return min_lr_ratio
    progress = (step - warmup - stable) / max(1, num_decay_steps)
    if decay_type == "cosine":
        factor = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress))
    else:
        factor = _shape(decay_type, 1.0 - progress)
    return max(0.0, factor * (1.0 - min_lr_ratio) + min_lr_ratio)


def _shape(kind: str, rising: float) -> float:
    shapes: dict[str, Callable[[float], float]] = {
        "linear": lambda x: x,
        "cosine": lambda x: 0.5 * (1.0 - math.cos(math.pi * x)),
        "1-sqrt": lambda x: 1.0 - math.sqrt(1.0 - x),
    }
    if kind not in shapes:
        raise ValueError(f"no such shape of a schedule: {kind!r}. Known: {', '.join(shapes)}")
    return shapes[kind](rising)


def _progress(step: int, warmup: int, total: int) -> float:
    return (step - warmup) / max(1, total - warmup)


def _floor(peak: float, min_lr: float | None, min_lr_rate: float | None) -> float:
    if min_lr is not None and min_lr_rate is not None:
        raise ValueError("give min_lr or min_lr_rate in lr_scheduler_kwargs, not both")
    if min_lr is None and min_lr_rate is None:
        raise ValueError("this schedule needs a floor: give min_lr or min_lr_rate in lr_scheduler_kwargs")
    return min_lr / peak if min_lr is not None else float(min_lr_rate or 0.0)


SHAPES: dict[str, Callable[..., float]] = {
    "linear": linear,
    "cosine": cosine,
    "cosine_with_restarts": cosine_with_restarts,
    "polynomial": polynomial,
    "constant": constant,
    "constant_with_warmup": constant_with_warmup,
    "inverse_sqrt": inverse_sqrt,
    "cosine_with_min_lr": cosine_with_min_lr,
    "cosine_warmup_with_min_lr": cosine_warmup_with_min_lr,
    "warmup_stable_decay": warmup_stable_decay,
}
_NEED_PEAK = {"polynomial", "cosine_with_min_lr", "cosine_warmup_with_min_lr"}


def make_schedule(
    name: str, optimizer: Optimizer, *, warmup: int, total: int, kwargs: Mapping[str, Any] | None = None
) -> LRScheduler:
    """The named schedule over `total` steps, of which `warmup` rise."""
    extra = dict(kwargs or {})
    if name == "reduce_lr_on_plateau":
        return ReduceLROnPlateau(optimizer, **extra)
    if name in _NEED_PEAK:
        extra["peak"] = optimizer.defaults["lr"]
    shape = partial(SHAPES[name], warmup=warmup, total=total, **extra)
    try:
        shape(0)
    except TypeError as error:
        raise ValueError(f"lr_scheduler_kwargs do not fit {name}: {error}") from error
    return LambdaLR(optimizer, shape)
