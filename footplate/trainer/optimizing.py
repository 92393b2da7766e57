"""Makes the Trainer's optimizer and schedule from the arguments, and finds the optimizer's groups and rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from footplate.trainer import schedules
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.optimizers.groups import make_optimizer

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


def create_optimizer(trainer: Trainer, model: nn.Module | None = None) -> Any:
    if trainer.optimizer is None:
        target = trainer.model if model is None else model
        optimizer_class, kwargs = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(
            trainer.args, target
        )
        decay = trainer.get_decay_parameter_names(target)
        trainer.optimizer = make_optimizer(optimizer_class, kwargs, target, decay, trainer.args.weight_decay)
    return trainer.optimizer


def create_scheduler(trainer: Trainer, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
    if trainer.lr_scheduler is None:
        internals = trainer._footplate
        internals.made_schedule = True
        plain = internals.strategy.plain_optimizer(optimizer if optimizer is not None else trainer.optimizer)
        if isinstance(plain, NamedOptimizers):
            trainer.lr_scheduler = plain.make_schedule(num_training_steps)
            return trainer.lr_scheduler
        trainer.lr_scheduler = schedules.get_scheduler(
            trainer.args.lr_scheduler_type,
            plain,
            num_warmup_steps=trainer.args.get_warmup_steps(num_training_steps),
            num_training_steps=num_training_steps,
            scheduler_specific_kwargs=trainer.args.lr_scheduler_kwargs,
        )
    return trainer.lr_scheduler


def optimizer_by_name(trainer: Trainer) -> dict[str, Optimizer]:
    """Returns the named optimizers by name, or an empty dict if there is one optimizer."""
    plain = trainer._footplate.strategy.plain_optimizer(trainer.optimizer)
    return plain.by_name if isinstance(plain, NamedOptimizers) else {}


def learning_rates(trainer: Trainer) -> list[float]:
    return [group["lr"] for group in _groups(trainer)]


def first_learning_rate(trainer: Trainer) -> float:
    return float(_groups(trainer)[0]["lr"])


def optimizer_group(trainer: Trainer, param: str | nn.Parameter | None = None) -> Any:
    """Returns the optimizer's group that has the parameter. Without a parameter, returns all groups' parameters."""
    groups = _groups(trainer)
    if param is None:
        return [group["params"] for group in groups]
    parameter_object = dict(trainer.model.named_parameters())[param] if isinstance(param, str) else param
    return next(
        (group for group in groups if any(parameter is parameter_object for parameter in group["params"])), None
    )


def _groups(trainer: Trainer) -> list[dict[str, Any]]:
    if trainer.optimizer is None:
        raise ValueError("there is no optimizer yet: call create_optimizer() or train() first")
    return trainer.optimizer.param_groups  # type: ignore[no-any-return]
