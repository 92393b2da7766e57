"""Changes arguments of a running training, between two steps. A change that is not possible is refused with a reason.

    change(trainer, {"learning_rate": 1e-4, "max_steps": 2000})

learning_rate is the rate from which the schedule starts, like the argument. The schedule continues at its position,
over the new number of steps. The result is bit-identical to a run that is resumed with these arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from footplate.contract.errors import did_you_mean
from footplate.trainer import schedules
from footplate.trainer.named.named_optimizer import NamedOptimizer, length_of, make_schedule, maker
from footplate.trainer.optimizing import optimizer_by_name

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

CADENCES = {"logging_steps": "logging_strategy", "eval_steps": "eval_strategy", "save_steps": "save_strategy"}
"""Intervals that can change, each with the argument that must be "steps" for the interval to have an effect."""
CHANGEABLE = ("learning_rate", "max_steps", *CADENCES)


class CannotChange(ValueError):
    """The reason why a value cannot change, in one sentence."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result of a change: the values that changed and those that were refused."""

    values: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """The old and the new value, by name."""
    refused: dict[str, str] = field(default_factory=dict)
    """The reason for the refusal, by name."""


def change(trainer: Trainer, new_values: Mapping[str, Any]) -> ChangeResult:
    """Applies each value that can change. Call it in `on_step_end`, with the same values in every process."""
    changed = ChangeResult()
    unknown = [name for name in new_values if name not in CHANGEABLE]
    for name in [*(name for name in CHANGEABLE if name in new_values), *unknown]:
        before = _before(trainer, name)
        try:
            _change(trainer, name, new_values[name])
        except CannotChange as error:
            changed.refused[name] = str(error)
        else:
            changed.values[name] = (before, new_values[name])
    trainer.state.compute_steps(trainer.args, trainer.state.max_steps)
    return changed


def _before(trainer: Trainer, name: str) -> Any:
    if name == "max_steps":
        return trainer.state.max_steps
    if name == "learning_rate" and (optimizers := optimizer_by_name(trainer)):
        return {optimizer_name: _peak(optimizer) for optimizer_name, optimizer in optimizers.items()}
    return getattr(trainer.args, name, None)


def _change(trainer: Trainer, name: str, value: Any) -> None:
    if name == "learning_rate":
        (_set_rates if optimizer_by_name(trainer) else _set_rate)(trainer, value)
    elif name == "max_steps":
        _set_end(trainer, value)
    elif name in CADENCES:
        strategy = getattr(trainer.args, CADENCES[name])
        if strategy != "steps":
            raise CannotChange(
                f"{CADENCES[name]} is {str(strategy)!r}, so {name} has no effect: start the run with "
                f"{CADENCES[name]}='steps'"
            )
        setattr(trainer.args, name, value)
    else:
        raise CannotChange(f"{name} cannot change during training; {', '.join(CHANGEABLE)} can")


# The rate ------------------------------------------------------------------------------------------------------------


def _set_rate(trainer: Trainer, value: Any) -> None:
    args, schedule = trainer.args, trainer.lr_scheduler
    if isinstance(value, Mapping):
        raise CannotChange("there is one optimizer, so learning_rate must be a number")
    if schedules.follows_a_metric(schedule):
        raise CannotChange(
            f"{args.lr_scheduler_type} sets the learning rate from the results of evaluations, so that a new value "
            "would have no effect"
        )
    if not (trainer._footplate.made_schedule and isinstance(schedule, LambdaLR)):
        raise CannotChange(
            f"the schedule, {type(schedule).__name__}, was not made from the arguments, so it does not follow "
            "learning_rate"
        )
    if any(base != args.learning_rate for base in schedule.base_lrs):
        raise CannotChange(
            "the optimizer's parameter groups have different learning rates, which one value cannot replace"
        )
    args.learning_rate = float(value)
    _follow(trainer, schedule, trainer.state.max_steps)


def _follow(trainer: Trainer, schedule: LambdaLR, total: int) -> None:
    """Replaces the schedule by one that is made from the arguments and is `total` steps long. The position stays."""
    args = trainer.args
    new_schedule = schedules.get_scheduler(
        args.lr_scheduler_type,
        _stand_in(args.learning_rate, groups=len(schedule.base_lrs)),
        num_warmup_steps=args.get_warmup_steps(total),
        num_training_steps=total,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
    )
    continue_as(schedule, new_schedule, args.learning_rate)


def _set_rates(trainer: Trainer, value: Any) -> None:
    """Sets the learning rates of named optimizers. If one of the rates cannot change, none does."""
    optimizers = optimizer_by_name(trainer)
    if not isinstance(value, Mapping):
        if len(optimizers) > 1:
            example = {next(iter(optimizers)): value}
            names = ", ".join(optimizers)
            raise CannotChange(f"there are {len(optimizers)} optimizers, {names}: name one, as in {example}")
        value = dict.fromkeys(optimizers, value)
    actions = [_rate_setter(trainer, name, float(rate)) for name, rate in value.items()]
    for apply in actions:
        apply()


def _rate_setter(trainer: Trainer, name: str, rate: float) -> Callable[[], None]:
    """Returns a function that sets the rate of one optimizer. Raises CannotChange if the rate cannot change."""
    optimizers = optimizer_by_name(trainer)
    if name not in optimizers:
        hint = did_you_mean(name, optimizers) or f"there is: {', '.join(optimizers)}"
        raise CannotChange(f"there is no optimizer {name!r}; {hint}")
    number = list(optimizers).index(name)
    spec, optimizer = trainer._footplate.named_optimizers[number], optimizers[name]
    if "lr" not in inspect.signature(maker(spec)).parameters:
        raise CannotChange(f"optimizer {name!r} takes no argument lr, so it has no learning rate to change")
    schedule = trainer.lr_scheduler.of(name)
    if not isinstance(schedule, LambdaLR | None):
        raise CannotChange(
            f"the schedule of optimizer {name!r} is a {type(schedule).__name__}, whose rate cannot be replaced: "
            "only a LambdaLR, such as Hugging Face's cosine schedule, allows it"
        )

    def apply() -> None:
        trainer._footplate.named_optimizers[number] = _with_rate(spec, rate)
        if schedule is not None:
            continue_as(schedule, make_schedule(spec, _stand_in(rate), trainer.state.max_steps), rate)
            return
        for group in optimizer.param_groups:
            _set_group(group, rate)

    return apply


def _with_rate(spec: NamedOptimizer, rate: float) -> NamedOptimizer:
    return replace(spec, args={**spec.args, "lr": rate})


def _peak(optimizer: Optimizer) -> float:
    group = optimizer.param_groups[0]
    return float(group.get("initial_lr", group["lr"]))


def _stand_in(rate: float, *, groups: int = 1) -> Optimizer:
    """Returns an unused optimizer to make a schedule with, because making one changes its optimizer's learning rate."""
    return torch.optim.SGD([{"params": [torch.zeros(())]} for _ in range(groups)], lr=rate)


def continue_as(schedule: LambdaLR, template: LambdaLR, peak: float) -> None:
    """Gives the schedule the shape of `template` and the peak rate `peak`, at its present position.

    The object itself is changed, because the training step has a reference to it.
    """
    shapes = template.lr_lambdas * (len(schedule.base_lrs) // len(template.lr_lambdas))
    schedule.lr_lambdas, schedule.base_lrs = shapes, [peak for _ in schedule.base_lrs]
    schedule._last_lr = [peak * shape(schedule.last_epoch) for shape in shapes]
    for group, rate in zip(schedule.optimizer.param_groups, schedule._last_lr, strict=True):
        group["initial_lr"] = peak
        _set_group(group, rate)


def _set_group(group: dict[str, Any], rate: Any) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


# The end -------------------------------------------------------------------------------------------------------------


def _set_end(trainer: Trainer, value: int) -> None:
    state, schedule = trainer.state, trainer.lr_scheduler
    if value <= state.global_step:
        raise CannotChange(f"step {state.global_step} is already reached: use {state.global_step + 1} or more")
    if optimizer_by_name(trainer):
        _lengthen(trainer, value)
    elif trainer._footplate.made_schedule and isinstance(schedule, LambdaLR):
        _follow(trainer, schedule, value)
    elif not schedules.follows_a_metric(schedule) and value > state.max_steps:
        raise CannotChange(
            f"the schedule, {type(schedule).__name__}, was not made from the arguments, and may end at the old "
            f"max_steps: set max_steps to {state.max_steps} or less"
        )
    trainer._footplate.run.plan = trainer._footplate.run.plan.until(value)
    trainer.args.max_steps = state.max_steps = value
    state.num_train_epochs = trainer._footplate.run.plan.epochs


def _lengthen(trainer: Trainer, total: int) -> None:
    """Extends the schedules of named optimizers to `total` steps. Schedules with their own length do not change.

    Raises CannotChange for a schedule that ends with the run and that cannot be made longer.
    """
    changes: list[tuple[LambdaLR, LambdaLR, float]] = []
    for spec in trainer._footplate.named_optimizers:
        optimizer, schedule = optimizer_by_name(trainer)[spec.id], trainer.lr_scheduler.of(spec.id)
        if schedule is None:
            continue
        if isinstance(schedule, LambdaLR):
            peak = _peak(optimizer)
            changes.append((schedule, make_schedule(spec, _stand_in(peak), total), peak))
        elif total > trainer.state.max_steps and length_of(spec, total):
            raise CannotChange(
                f"the schedule of optimizer {spec.id!r}, {type(schedule).__name__}, ends at the old max_steps: use "
                f"{trainer.state.max_steps} or less"
            )
    for schedule, new_schedule, peak in changes:
        continue_as(schedule, new_schedule, peak)


# Before the run ------------------------------------------------------------------------------------------------------


def begin_with(trainer: Trainer, values: Mapping[str, Any]) -> None:
    """Applies earlier changes to a run that continues from a checkpoint written after them."""
    for name, value in values.items():
        if name == "learning_rate" and trainer._footplate.named_optimizers:
            rates = value if isinstance(value, Mapping) else {trainer._footplate.named_optimizers[0].id: value}
            specs = trainer._footplate.named_optimizers
            specs[:] = [_with_rate(spec, rates[spec.id]) if spec.id in rates else spec for spec in specs]
        else:
            setattr(trainer.args, name, value)
