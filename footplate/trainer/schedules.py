"""Learning rate schedules, with Hugging Face's names and signatures, and `get_scheduler`, which makes any by name.

A schedule is a function of the step that returns the factor of the peak rate. The order of operations is Hugging
Face's, so that rates are identical. greedy.py has GreedyLR, which follows a metric.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from footplate.trainer.greedy import GreedyLR
from footplate.trainer.names import SchedulerType

Ramp = Literal["linear", "cosine", "1-sqrt"]


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """Keeps the learning rate that the optimizer was made with."""
    return LambdaLR(optimizer, _constant, last_epoch=last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """Rises from 0 during the warm-up, then stays constant."""
    return LambdaLR(optimizer, partial(_warmed_up, warmup=num_warmup_steps), last_epoch)


def _constant(step: int) -> float:
    return 1.0


def _warmed_up(step: int, *, warmup: int) -> float:
    return step / max(1, warmup) if step < warmup else 1.0


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """Rises from 0 during the warm-up, then falls linearly to 0."""
    factor = partial(_linear, warmup=num_warmup_steps, total=num_training_steps)
    return LambdaLR(optimizer, factor, last_epoch)


def _linear(step: int, *, warmup: int, total: int) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, (total - step) / max(1, total - warmup))


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> LambdaLR:
    """Follows a cosine after the warm-up. Half a wave, the default, ends at 0."""
    factor = partial(_cosine, warmup=num_warmup_steps, total=num_training_steps, num_cycles=num_cycles)
    return LambdaLR(optimizer, factor, last_epoch)


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
    floor = _floor(optimizer, min_lr, min_lr_rate)
    factor = partial(_cosine, warmup=num_warmup_steps, total=num_training_steps, num_cycles=num_cycles, floor=floor)
    return LambdaLR(optimizer, factor, last_epoch)


def _cosine(step: int, *, warmup: int, total: int, num_cycles: float, floor: float = 0.0) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, _above(floor, _wave(num_cycles, _progress(step, warmup, total))))


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
    """Follows a cosine that ends at a minimum, like `get_cosine_with_min_lr_schedule_with_warmup`.

    Steps are counted from 1. The warm-up starts at the share `warmup_lr_rate` of the peak, never at 0.
    """
    factor = partial(
        _cosine_from_one,
        warmup=num_warmup_steps,
        total=num_training_steps,
        num_cycles=num_cycles,
        floor=_floor(optimizer, min_lr, min_lr_rate),
        start=warmup_lr_rate,
    )
    return LambdaLR(optimizer, factor, last_epoch)


def _cosine_from_one(
    step: int, *, warmup: int, total: int, num_cycles: float, floor: float, start: float | None
) -> float:
    if step < warmup:
        if start is None:
            return (step + 1.0) / max(1.0, warmup)
        return start + (1.0 - start) * float(step) / max(1, warmup - 1)
    progress = (step - warmup + 1.0) / max(1.0, total - warmup)
    return max(0.0, _above(floor, _wave(num_cycles, progress)))


def _floor(optimizer: Optimizer, min_lr: float | None, min_lr_rate: float | None) -> float:
    if min_lr is not None and min_lr_rate is not None:
        raise ValueError("Only one of min_lr or min_lr_rate should be set: lr_scheduler_kwargs has both")
    if min_lr is not None:
        return min_lr / float(optimizer.defaults["lr"])
    if min_lr_rate is None:
        raise ValueError("One of min_lr or min_lr_rate should be set through the `lr_scheduler_kwargs`")
    return min_lr_rate


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1, last_epoch: int = -1
) -> LambdaLR:
    """Falls to 0 along half a cosine `num_cycles` times, and jumps back to the peak in between."""
    factor = partial(_restarts, warmup=num_warmup_steps, total=num_training_steps, num_cycles=num_cycles)
    return LambdaLR(optimizer, factor, last_epoch)


def _restarts(step: int, *, warmup: int, total: int, num_cycles: float) -> float:
    if step < warmup:
        return step / max(1, warmup)
    progress = _progress(step, warmup, total)
    if progress >= 1.0:
        return 0.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((float(num_cycles) * progress) % 1.0))))


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """Falls to the rate `lr_end`, in proportion to the remaining share of the run to the power of `power`."""
    peak = optimizer.defaults["lr"]
    if not peak > lr_end:
        raise ValueError(
            f"lr_end ({lr_end}) must be smaller than initial lr ({peak}): give a smaller lr_end in lr_scheduler_kwargs"
        )
    factor = partial(
        _polynomial, warmup=num_warmup_steps, total=num_training_steps, peak=peak, lr_end=lr_end, power=power
    )
    return LambdaLR(optimizer, factor, last_epoch)


def _polynomial(step: int, *, warmup: int, total: int, peak: float, lr_end: float, power: float) -> float:
    if step < warmup:
        return step / max(1, warmup)
    if step > total:
        return lr_end / peak
    remaining = 1 - _progress(step, warmup, total)
    return float((peak - lr_end) * remaining**power + lr_end) / peak


def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """Falls with the inverse square root of the step. `timescale` is the warm-up's length by default."""
    scale = (num_warmup_steps or 10_000) if timescale is None else timescale
    factor = partial(_inverse_sqrt, warmup=num_warmup_steps, timescale=scale)
    return LambdaLR(optimizer, factor, last_epoch)


def _inverse_sqrt(step: int, *, warmup: int, timescale: int) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return 1.0 / math.sqrt((step + (timescale - warmup)) / timescale)


def get_wsd_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: Ramp = "linear",
    decay_type: Ramp = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Rises, stays constant, then decays. By default, the constant phase has the steps that the others leave."""
    if num_stable_steps is None:
        if num_training_steps is None:
            raise ValueError("Either num_training_steps or num_stable_steps must be specified.")
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps
    elif num_training_steps is not None:
        warnings.warn(
            "Both num_training_steps and num_stable_steps are specified. num_stable_steps will be used.", stacklevel=2
        )
    for phase, ramp in (("warmup", warmup_type), ("decay", decay_type)):
        if ramp not in get_args(Ramp):
            raise ValueError(f"Unknown {phase} type: {ramp}, expected {', '.join(get_args(Ramp))}")
    factor = partial(
        _warmup_stable_decay,
        warmup=num_warmup_steps,
        stable=num_stable_steps,
        decay=num_decay_steps,
        warmup_type=warmup_type,
        decay_type=decay_type,
        floor=min_lr_ratio,
        num_cycles=num_cycles,
    )
    return LambdaLR(optimizer, factor, last_epoch)


def _warmup_stable_decay(
    step: int,
    *,
    warmup: int,
    stable: int,
    decay: int,
    warmup_type: Ramp,
    decay_type: Ramp,
    floor: float,
    num_cycles: float,
) -> float:
    if step < warmup:
        return max(0.0, _above(floor, _rise(warmup_type, step / max(1, warmup))))
    if step < warmup + stable:
        return 1.0
    if step < warmup + stable + decay:
        return max(0.0, _above(floor, _fall(decay_type, (step - warmup - stable) / max(1, decay), num_cycles)))
    return floor


def _rise(ramp: Ramp, progress: float) -> float:
    if ramp == "linear":
        return progress
    return 0.5 * (1.0 - math.cos(math.pi * progress)) if ramp == "cosine" else 1.0 - math.sqrt(1.0 - progress)


def _fall(ramp: Ramp, progress: float, num_cycles: float) -> float:
    if ramp == "linear":
        return 1.0 - progress
    return _wave(num_cycles, progress) if ramp == "cosine" else 1.0 - math.sqrt(progress)


def _progress(step: int, warmup: int, total: int) -> float:
    return (step - warmup) / max(1, total - warmup)


def _wave(num_cycles: float, progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * float(num_cycles) * 2.0 * progress))


def _above(floor: float, factor: float) -> float:
    return factor * (1 - floor) + floor


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
_CLASSES = {SchedulerType.REDUCE_ON_PLATEAU: ReduceLROnPlateau, SchedulerType.GREEDY: GreedyLR}
"""Schedule classes whose signature lists the arguments, because their function takes only `**kwargs`."""


def get_scheduler(
    name: str | SchedulerType,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Makes a schedule by name. A number of steps may be None if the schedule does not need it.

    Raises TypeError for an argument that the schedule does not take.
    """
    name = SchedulerType(name)
    make = TYPE_TO_SCHEDULER_FUNCTION[name]
    signature = inspect.signature(_CLASSES.get(name, make))
    extra = dict(scheduler_specific_kwargs or {})
    steps = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    for needed in (needed for needed in steps if needed in signature.parameters):
        if steps[needed] is None and signature.parameters[needed].default is inspect.Parameter.empty:
            raise ValueError(f"{name} requires `{needed}`, please provide that argument.")
        extra.setdefault(needed, steps[needed])
    try:
        signature.bind(optimizer, **extra)
    except TypeError as error:
        accepted = [argument for argument in signature.parameters if argument not in (*steps, *_OURS)]
        raise TypeError(
            f"lr_scheduler_kwargs do not fit {name}: {error}. It takes {', '.join(accepted) or 'none'}"
        ) from error
    return make(optimizer, **extra)


_OURS = ("optimizer", "last_epoch")


def follows_a_metric(schedule: LRScheduler | GreedyLR | Any) -> bool:
    """Returns True if the schedule moves by `step(metric)` after evaluations, not by `step()` after optimizer steps."""
    return isinstance(schedule, (ReduceLROnPlateau, GreedyLR))
