"""Builds the optimizers and metrics that a spec names, and checks them together with the Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from footplate.components.hf_loading import MERGES_AT_END
from footplate.contract.components import GROUPS
from footplate.contract.errors import InvalidSpec, NotBuildable, Problem, UnknownComponent
from footplate.contract.spec_parts import Component, Optimizer

Load = Callable[[str, str], Any]
"""A function that imports the component of a group and name. It raises UnknownComponent if there is none."""


def named_optimizers(optimizers: Sequence[Optimizer] | None, load: Load) -> list[Any]:
    """Returns the optimizers in the order in which they step. The list is empty if `training` describes the one."""
    from footplate.trainer.named import NamedOptimizer

    return [
        NamedOptimizer(
            id=optimizer.id,
            params=optimizer.params,
            use=load("optimizers", optimizer.use),
            args=optimizer.args,
            loss=optimizer.loss,
            schedule=load("schedules", optimizer.schedule.use) if optimizer.schedule else None,
            schedule_args=optimizer.schedule.args if optimizer.schedule else {},
            per=optimizer.schedule.per if optimizer.schedule else "step",
            every=optimizer.every,
            clip=optimizer.clip,
        )
        for optimizer in optimizers or ()
    ]


def metric(component: Component, load: Load, registered: Mapping[str, Any]) -> Any:
    """Returns the name of a metric, or a function that makes it. The Trainer makes each metric for each evaluation."""
    from footplate.trainer.metrics.choose import METRICS
    from footplate.trainer.metrics.text import TEXTS
    from footplate.trainer.metrics.third_party import PREFIX, TorchMetric

    name, args = component.use, component.args
    if name in (*METRICS, *TEXTS) and not args:
        return name
    if name in registered or ":" in name:
        return partial(load("metrics", name), **args)
    if name.startswith(PREFIX):
        return partial(TorchMetric, name.removeprefix(PREFIX), **args) if args else name
    raise UnknownComponent(GROUPS["metrics"], name, {*registered, *METRICS, *TEXTS})


def check_trainer(trainer: Any, loss: Any, optimizers: Sequence[Any]) -> None:
    """Checks what depends on several parts, and sets whether the loss shifts labels.

    Each parameter must have one optimizer, and a model whose adapter is merged at the end must not be sharded.
    """
    if _merges(trainer.model) and not trainer._footplate.strategy.holds_whole:
        raise NotBuildable(
            "peft.merge needs the whole model in one process, and this strategy shards the model",
            hint="use ddp or one process, or leave merge out and merge the job's outputs later",
        )
    if hasattr(loss, "shifts_labels"):
        loss.shifts_labels = trainer._footplate.model_signature.shifts_labels
    if optimizers:
        from footplate.trainer.named.spec import parted

        try:
            parted(trainer.model, optimizers)
        except ValueError as error:
            raise InvalidSpec([Problem("/optimizers", "not_parted", str(error))]) from error


def save_model(trainer: Any, folder: Path) -> None:
    """Saves the job's model: the whole model, its adapters, or the model with the adapters merged."""
    (trainer.save_merged_model if _merges(trainer.model) else trainer.save_model)(str(folder))


def _merges(model: Any) -> bool:
    return bool(getattr(model, MERGES_AT_END, False))
