"""Hugging Face's schedule functions, with its names and signatures, and `get_scheduler`, which makes any by name."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from footplate.trainer.names import SchedulerType
from footplate.trainer.schedules import shapes
from footplate.trainer.schedules.greedy import GreedyLR


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """Keeps the optimizer's own rate."""
    return LambdaLR(optimizer, shapes.constant, last_epoch=last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """Rises from 0 during the warm-up, then stays constant."""
    return LambdaLR(optimizer, partial(shapes.constant_with_warmup, warmup=num_warmup_steps), last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """Rises from 0 during the warm-up, then falls linearly to 0."""
    shape = partial(shapes.linear, warmup=num_warmup_steps, total=num_training_steps)
    return LambdaLR(optimizer, shape, last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> LambdaLR:
    """Follows a cosine after the warm-up. Half a wave, the default, ends at 0."""
    shape = partial(shapes.cosine, warmup=num_warmup_steps, total=num_training_steps, num_cycles=num_cycles)
    return LambdaLR(optimizer, shape, last_epoch)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1, last_epoch: int = -1
) -> LambdaLR:
    """Falls to 0 along half a cosine `num_cycles` times, and jumps back to the peak in between."""
    shape = partial(
        shapes.cosine_with_restarts, warmup=num_warmup_steps, total=num_training_steps, num_cycles=num_cycles
    )
    return LambdaLR(optimizer, shape, last_epoch)


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """Falls to the rate `lr_end`, in proportion to the remaining part of the run to the power of `power`."""
    peak = optimizer.defaults["lr"]
    if not peak > lr_end:
        raise ValueError(
            f"lr_end ({lr_end}) must be smaller than initial lr ({peak}): give a smaller lr_end in lr_scheduler_kwargs"
        )
    shape = partial(
        shapes.polynomial, warmup=num_warmup_steps, total=num_training_steps, peak=peak, lr_end=lr_end, power=power
    )
    return LambdaLR(optimizer, shape, last_epoch)


def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """Falls with the inverse square root of the step. `timescale` is the warm-up's length by default."""
    scale = (num_warmup_steps or 10_000) if timescale is None else timescale
    return LambdaLR(
        optimizer, partial(shapes.inverse_sqrt, warmup=num_warmup_steps, timescale=scale), last_epoch=last_epoch
    )


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    """Follows a cosine that ends at the rate `min_lr`, or at the share `min_lr_rate` of the peak."""
    shape = partial(
        shapes.cosine_with_floor,
        warmup=num_warmup_steps,
        total=num_training_steps,
        num_cycles=num_cycles,
        floor=_floor(optimizer, min_lr, min_lr_rate),
    )
    return LambdaLR(optimizer, shape, last_epoch)


def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> LambdaLR:
    """Follows the same cosine, counted from step 1. The warm-up starts at the share `warmup_lr_rate`, never at 0."""
    shape = partial(
        shapes.cosine_with_floor_from_one,
        warmup=num_warmup_steps,
        total=num_training_steps,
        num_cycles=num_cycles,
        floor=_floor(optimizer, min_lr, min_lr_rate),
        start=warmup_lr_rate,
    )
    return LambdaLR(optimizer, shape, last_epoch)


def _floor(optimizer: Optimizer, min_lr: float | None, min_lr_rate: float | None) -> float:
    if min_lr is not None and min_lr_rate is not None:
        raise ValueError("Only one of min_lr or min_lr_rate should be set: lr_scheduler_kwargs has both")
    if min_lr is not None:
        return min_lr / float(optimizer.defaults["lr"])
    if min_lr_rate is None:
        raise ValueError("One of min_lr or min_lr_rate should be set through the `lr_scheduler_kwargs`")
    return min_lr_rate


def get_wsd_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: shapes.Ramp = "linear",
    decay_type: shapes.Ramp = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Rises, stays constant, then decays. By default the constant part takes the steps that are left."""
    if num_stable_steps is None:
        if num_training_steps is None:
            raise ValueError("Either num_training_steps or num_stable_steps must be specified.")
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps
    elif num_training_steps is not None:
        warnings.warn(
            "Both num_training_steps and num_stable_steps are specified. num_stable_steps will be used.", stacklevel=2
        )
    for part, ramp in (("warmup", warmup_type), ("decay", decay_type)):
        if ramp not in shapes.RAMPS:
            raise ValueError(f"Unknown {part} type: {ramp}, expected {', '.join(shapes.RAMPS)}")
    shape = partial(
        shapes.warmup_stable_decay,
        warmup=num_warmup_steps,
        stable=num_stable_steps,
        decay=num_decay_steps,
        warmup_type=warmup_type,
        decay_type=decay_type,
        floor=min_lr_ratio,
        num_cycles=num_cycles,
    )
    return LambdaLR(optimizer, shape, last_epoch)


def get_reduce_on_plateau_schedule(optimizer: Optimizer, **kwargs: Any) -> ReduceLROnPlateau:
    """Reduces the rate if a metric stops improving. Its `step(metric)` is called after evaluations."""
    return ReduceLROnPlateau(optimizer, **kwargs)


def get_greedy_schedule(optimizer: Optimizer, **kwargs: Any) -> GreedyLR:
    """Reduces the rate if a metric stops improving, and raises it while the metric improves."""
    return GreedyLR(optimizer, **kwargs)


TYPE_TO_SCHEDULER_FUNCTION: dict[SchedulerType, Callable[..., Any]] = {
    SchedulerType.LINEAR: get_linear_schedule_with_warmup,
    SchedulerType.COSINE: get_cosine_schedule_with_warmup,
    SchedulerType.COSINE_WITH_RESTARTS: get_cosine_with_hard_restarts_schedule_with_warmup,
    SchedulerType.POLYNOMIAL: get_polynomial_decay_schedule_with_warmup,
    SchedulerType.CONSTANT: get_constant_schedule,
    SchedulerType.CONSTANT_WITH_WARMUP: get_constant_schedule_with_warmup,
    SchedulerType.INVERSE_SQRT: get_inverse_sqrt_schedule,
    SchedulerType.REDUCE_ON_PLATEAU: get_reduce_on_plateau_schedule,
    SchedulerType.COSINE_WITH_MIN_LR: get_cosine_with_min_lr_schedule_with_warmup,
    SchedulerType.COSINE_WARMUP_WITH_MIN_LR: get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    SchedulerType.WARMUP_STABLE_DECAY: get_wsd_schedule,
    SchedulerType.GREEDY: get_greedy_schedule,
}


def get_scheduler(
    name: str | SchedulerType,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Makes a schedule by name. An argument that it does not take is refused; a step count it ignores may be None."""
    name = SchedulerType(name)
    make = TYPE_TO_SCHEDULER_FUNCTION[name]
    extra = dict(scheduler_specific_kwargs or {})
    takes = inspect.signature(make).parameters
    steps = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    for needed, value in steps.items():
        if needed not in takes:
            continue
        if value is None and takes[needed].default is inspect.Parameter.empty:
            raise ValueError(f"{name} requires `{needed}`, please provide that argument.")
        extra.setdefault(needed, value)
    try:
        inspect.signature(_class_behind(make)).bind(optimizer, **extra)
    except TypeError as error:
        accepted = [
            parameter
            for parameter in inspect.signature(_class_behind(make)).parameters
            if parameter not in (*steps, *_OURS)
        ]
        raise TypeError(
            f"lr_scheduler_kwargs do not fit {name}: {error}. It takes {', '.join(accepted) or 'none'}"
        ) from error
    return make(optimizer, **extra)


_OURS = ("optimizer", "last_epoch")


def _class_behind(make: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the callable whose signature lists the arguments, for functions that only take `**kwargs`."""
    behind: dict[Callable[..., Any], Callable[..., Any]] = {
        get_reduce_on_plateau_schedule: ReduceLROnPlateau,
        get_greedy_schedule: GreedyLR,
    }
    return behind.get(make, make)


def follows_a_metric(schedule: LRScheduler | GreedyLR | Any) -> bool:
    """Returns True if the schedule moves by `step(metric)` after evaluations, not by `step()` after optimizer steps."""
    return isinstance(schedule, (ReduceLROnPlateau, GreedyLR))
