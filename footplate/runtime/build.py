"""Builds the objects that a spec names. A spec reaches code only by registered names, and files only below roots."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from footplate.components.component import missing
from footplate.components.hf_loading import MERGES_AT_END
from footplate.components.lines import split_rows
from footplate.components.rows import for_each_set
from footplate.contract.components import GROUPS, entry_point_group
from footplate.contract.errors import InvalidSpec, NotBuildable, Problem, UnknownComponent
from footplate.contract.host.file_roots import ROOTS, Files, Roots, resolved
from footplate.contract.short_forms import REWARDS
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component, Optimizer
from footplate.runtime import own_code
from footplate.runtime.end_tokens import write_end_tokens
from footplate.runtime.own_code import OwnComponent
from footplate.trainer.adapters import base_model
from footplate.trainer.evaluation import OwnEvaluation
from footplate.trainer.metrics.choose import METRICS
from footplate.trainer.metrics.third_party import PREFIX, TEXTS, TorchMetric
from footplate.trainer.named import NamedOptimizer
from footplate.trainer.named.named_optimizer import parameters_of


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that are built for a spec: the Trainer's arguments."""

    model: Any
    processor: Any
    train: Any
    eval: Any
    test: Any
    collator: Any
    loss: Any
    metrics: list[Any]
    compute_metrics: Any
    optimizers: list[Any]
    callbacks: list[Any]
    rewards: list[Any]
    """The reward functions among the arguments of a library's trainer."""
    make_trainer: Callable[..., Any] | None
    """The component that makes a library's trainer, such as TRL's. None: Footplate's Trainer, or a subclass."""
    trainer_args: dict[str, Any]
    """Further arguments of `make_trainer`, or of the Trainer's subclass."""
    data_files: Files
    """The files that the spec names by `data://`. Their fingerprints show if data has changed between attempts."""


def build(spec: JobSpec, roots: Roots) -> Parts:
    """Builds the parts. Data comes first, so that missing data is reported before a large model is loaded."""
    builder = _Builder(spec, roots)
    train, test = builder.batches("train", spec.data.train), builder.batches("test", spec.data.test)
    evaluation = for_each_set(spec.data.eval, partial(builder.make, "data"))
    if spec.data.split is not None:
        train, evaluation = split_rows(train, spec.data.split)
    trainer_args: dict[str, Any] = dict(spec.trainer.args) if spec.trainer else {}
    rewards = trainer_args.pop(REWARDS, ())
    return Parts(
        train=builder.mapped(train),
        eval=for_each_set(evaluation, builder.mapped),
        processor=builder.processor,
        model=builder.model,
        collator=builder.collator,
        test=builder.mapped(test),
        metrics=[metric(component) for component in spec.metrics],
        compute_metrics=builder.make("compute_metrics", spec.compute_metrics),
        loss=builder.make("losses", spec.loss),
        optimizers=named_optimizers(spec.optimizers),
        callbacks=[builder.make("callbacks", component) for component in spec.callbacks],
        rewards=[builder.make("rewards", Component.model_validate(reward)) for reward in rewards],
        make_trainer=_installed("trainers", spec.library_trainer) if spec.library_trainer else None,
        trainer_args=resolved(trainer_args, roots),
        data_files=roots.read,
    )


def apply_maps(rows: Any, maps: Sequence[Component], spec: JobSpec, roots: Roots, *, processor: Any, model: Any) -> Any:
    """Applies a spec's maps to rows, with a processor and a model that exist already."""
    builder = _Builder(spec, roots)
    for component in maps:
        rows = builder.make("maps", component, rows=rows, processor=processor, model=model)
    return rows


class _Builder:
    """Builds the parts of a spec, each when it is first used, because some components need other parts."""

    def __init__(self, spec: JobSpec, roots: Roots) -> None:
        self.spec, self.roots = spec, roots

    def make(self, group: str, component: Component | None, **objects: Any) -> Any:
        """Calls a component, if any. Parameters before a `/`, as in (rows, processor, /), get the job's objects."""
        if component is None:
            return None
        # Missing files are reported before a part, such as a large model, is loaded for this component.
        target, args = _installed(group, component), resolved(component.args, self.roots)
        parts = [objects[name] if name in objects else getattr(self, name) for name in _needed_parts(target)]
        return target(*parts, **args)

    def batches(self, field: str, component: Component | None) -> Any:
        """Returns a dataset whose rows the Trainer can batch. Raises NotBuildable for one that evaluates itself."""
        rows = self.make("data", component)
        if isinstance(rows, OwnEvaluation):
            use = component and component.use
            raise NotBuildable(
                f"data.{field} cannot be {use}, which is an evaluation and not a dataset with rows",
                hint=f"name {use} in data.eval",
            )
        return rows

    def mapped(self, rows: Any) -> Any:
        if rows is None or isinstance(rows, OwnEvaluation):
            return rows
        for component in self.spec.data.map:
            rows = self.make("maps", component, rows=rows)
        return rows

    @property
    def bundle(self) -> Path | None:
        """The folder of the job's bundle."""
        return own_code.folder()

    @cached_property
    def processor(self) -> Any:
        """The processor that the spec names, or else the tokenizer in the folder of the model's weights."""
        if self.spec.processor is not None:
            return self.make("processors", self.spec.processor)
        path = self.spec.model.args.get("path") if self.spec.model else None
        if not (isinstance(path, str) and path.startswith(ROOTS)):
            return None
        folder = Path(self.roots.resolve(path))
        has_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
        return self.make("processors", Component(use="hf/tokenizer", args={"path": path})) if has_tokenizer else None

    @cached_property
    def model(self) -> Any:
        return self.make("models", self.spec.model)

    @cached_property
    def collator(self) -> Any:
        """The collator that the spec names, or the one that its model needs. None: the Trainer chooses one."""
        is_chosen_here = self.spec.collator is None and self.spec.library_trainer is None
        if is_chosen_here and self.processor is not None and self.spec.model is not None:
            name = COLLATORS.get(self.spec.model.use)
            return self.make("collators", Component(use=name)) if name else None
        return self.make("collators", self.spec.collator)


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

COLLATORS = {
    "hf/causal-lm": "causal-lm",
    "hf/masked-lm": "masked-lm",
    "hf/seq2seq": "seq2seq",
    "hf/token-classification": "token-classification",
}
"""The collators of models whose batches need more than padding."""

PASSED_PARTS = frozenset({"rows", "processor", "model", "bundle"})
"""The parts that a component gets if it has a positional-only parameter of that name."""


def _installed(group: str, component: Component) -> Callable[..., Any]:
    target = find(group, component.use).load()
    if lacks := missing(target):
        raise NotBuildable(f"{component.use} needs packages that this node lacks: {lacks}")
    return target


def _needed_parts(target: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    return [parameter.name for parameter in positional if parameter.name in PASSED_PARTS]


def find(group: str, name: str) -> EntryPoint | OwnComponent:
    """Returns a component of the job's bundle, or a registered one, without importing it. Raises UnknownComponent."""
    if ":" in name:
        return OwnComponent(group, name)
    components = registered(group)
    if name not in components:
        raise UnknownComponent(GROUPS[group], name, components)
    return components[name]


def load(group: str, name: str) -> Any:
    return find(group, name).load()


@cache
def registered(group: str) -> Mapping[str, EntryPoint]:
    """Returns the installed components of a group. They are read once, because reading takes milliseconds."""
    return {entry.name: entry for entry in entry_points(group=entry_point_group(group))}


def named_optimizers(optimizers: Sequence[Optimizer] | None) -> list[Any]:
    """Returns the optimizers of a spec's `optimizers`, in the order in which they step, or an empty list."""
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


def metric(component: Component) -> Any:
    """Returns a metric's name, or a function that makes the metric, which the Trainer calls for each evaluation."""
    name, args = component.use, component.args
    if name in (*METRICS, *TEXTS) and not args:
        return name
    if name in (names := registered("metrics")) or ":" in name:
        return partial(load("metrics", name), **args)
    if name.startswith(PREFIX):
        return partial(TorchMetric, name.removeprefix(PREFIX), **args) if args else name
    raise UnknownComponent(GROUPS["metrics"], name, {*names, *METRICS, *TEXTS})


def preload() -> None:
    """Imports the registry and our own components, for the warm parent. Jobs import components of other packages."""
    for group in GROUPS:
        registered(group)
    package = importlib.import_module("footplate.components")
    for module in pkgutil.iter_modules(package.__path__, "footplate.components."):
        importlib.import_module(module.name)


def check_trainer(trainer: Any, optimizers: Sequence[Any]) -> None:
    """Checks what is known only once the Trainer is built. Raises NotBuildable or InvalidSpec.

    An evaluation set with metrics of its own must support this model. `peft.merge` needs a model that is not sharded.
    Each parameter must be in exactly one of the `optimizers`.
    """
    sets = trainer.eval_dataset
    for rows in sets.values() if isinstance(sets, dict) else [sets]:
        if isinstance(rows, OwnEvaluation):
            rows.check(trainer)
    if merges_at_end(trainer.model) and not trainer._footplate.strategy.holds_whole:
        raise NotBuildable(
            "peft.merge needs the whole model in one process, and this strategy shards the model",
            hint="use ddp or one process, or leave merge out and merge the job's outputs later",
        )
    if optimizers:
        try:
            parameters_of(trainer.model, optimizers)
        except ValueError as error:
            raise InvalidSpec([Problem("/optimizers", "not_parted", str(error))]) from error


def save_model(trainer: Any, folder: Path, *, merges: bool) -> None:
    """Saves the job's model: the whole model, only its adapters, or the model with the adapters merged into it."""
    write_end_tokens(base_model(trainer.model), trainer.processing_class)
    (trainer.save_merged_model if merges else trainer.save_model)(str(folder))


def merges_at_end(model: Any) -> bool:
    """Returns True if the model component has `peft.merge`, so that the outputs hold the merged model."""
    return bool(getattr(model, MERGES_AT_END, False))
