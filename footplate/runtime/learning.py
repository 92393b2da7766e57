"""How a model learns, as a spec says it: optimizers, loss, metrics. Names become what a Trainer takes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from footplate.components.hf_loading import MERGES_AT_END
from footplate.contract.components import GROUPS
from footplate.contract.errors import InvalidSpec, NotBuildable, Problem, UnknownComponent
from footplate.contract.spec_parts import Component, Optimizer

Load = Callable[[str, str], Any]
"""(group, name) -> the component, imported; UnknownComponent where there is none."""


def named_optimizers(asked: Sequence[Optimizer] | None, load: Load) -> list[Any]:
    """The Trainer's, in the order in which they step; none where `training` says what the one optimizer is."""
    from footplate.trainer.named import NamedOptimizer

    return [
        NamedOptimizer(
            id=one.id,
            params=one.params,
            use=load("optimizers", one.use),
            args=one.args,
            loss=one.loss,
            schedule=load("schedules", one.schedule.use) if one.schedule else None,
            schedule_args=one.schedule.args if one.schedule else {},
            per=one.schedule.per if one.schedule else "step",
            every=one.every,
            clip=one.clip,
        )
        for one in asked or ()
    ]


def metric(asked: Component, load: Load, registered: Mapping[str, Any]) -> Any:
    """Metrics stream through an evaluation, so the Trainer makes one per evaluation: it gets how, not what."""
    from footplate.trainer.metrics import METRICS, TEXTS
    from footplate.trainer.metrics.third_party import PREFIX, TorchMetric

    if asked.use in (*METRICS, *TEXTS) and not asked.args:
        return asked.use
    if asked.use in registered or ":" in asked.use:
        return partial(load("metrics", asked.use), **asked.args)
    if asked.use.startswith(PREFIX):
        return partial(TorchMetric, asked.use.removeprefix(PREFIX), **asked.args) if asked.args else asked.use
    raise UnknownComponent(GROUPS["metrics"], asked.use, {*registered, *METRICS, *TEXTS})


def torchmetrics_names() -> list[str]:
    """What torchmetrics offers, read and not imported: that would cost every node seconds. None where it is missing."""
    found = find_spec("torchmetrics")
    if found is None or found.origin is None:
        return []
    for line in ast.parse(Path(found.origin).read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(line.value) if str(name)[0].isupper()]
    return []


def suit(trainer: Any, loss: Any, optimizers: Sequence[Any]) -> None:
    """What only the whole shows: which labels logits are about, that each parameter has one optimizer, and that a model
    which is to be merged will be in one piece."""
    if _merges(trainer.model) and not trainer._footplate.strategy.holds_whole:
        raise NotBuildable(
            "peft.merge works the adapter into the whole model, and this strategy cuts it into pieces",
            hint="use ddp or one process, or leave merge out and merge what the job leaves",
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
    """What is left of a job: the model, or its adapters; or the model with these worked into it."""
    (trainer.save_merged_model if _merges(trainer.model) else trainer.save_model)(str(folder))


def _merges(model: Any) -> bool:
    return bool(getattr(model, MERGES_AT_END, False))
