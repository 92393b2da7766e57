"""Names become objects. The only interpreter of strings: a spec reaches code by registered names, files by roots."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from footplate.components.extras import missing
from footplate.contract.components import GROUPS, entry_point_group
from footplate.contract.errors import NotBuildable, UnknownComponent
from footplate.contract.host.file_roots import ROOTS, Files, Roots, resolved
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component
from footplate.runtime.learning import metric, named_optimizers
from footplate.runtime.own_code import Own, own


@dataclass(frozen=True, slots=True)
class Parts:
    """What a spec named, built: the Trainer's arguments."""

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
    read: Files
    """The files behind the names of data that may change."""


def build(spec: JobSpec, roots: Roots) -> Parts:
    """Data first: what is missing there is said before a large model is loaded."""
    being = _Building(spec, roots)
    sets = spec.data.eval
    train = being.dataset(spec.data.train)
    evaluation: Any = (
        {name: being.dataset(one) for name, one in sets.items()} if isinstance(sets, dict) else being.dataset(sets)
    )
    return Parts(
        train=being.mapped(train),
        eval={name: being.mapped(one) for name, one in evaluation.items()}
        if isinstance(sets, dict)
        else being.mapped(evaluation),
        processor=being.processor,
        model=being.model,
        collator=being.collator,
        test=being.mapped(being.dataset(spec.data.test)),
        metrics=[metric(one, load, registered("metrics")) for one in spec.metrics],
        compute_metrics=being.make("compute_metrics", spec.compute_metrics),
        loss=being.make("losses", spec.loss),
        optimizers=named_optimizers(spec.optimizers, load),
        callbacks=[being.make("callbacks", one) for one in spec.callbacks],
        read=roots.read,
    )


class _Building:
    """Parts that are built from each other, each when it is first asked for."""

    def __init__(self, spec: JobSpec, roots: Roots) -> None:
        self.spec, self.roots = spec, roots

    def make(self, group: str, component: Component | None, **more: Any) -> Any:
        if component is None:
            return None
        target = find(group, component.use).load()
        if lacks := missing(target):
            raise NotBuildable(f"{component.use} needs what this node does not have: {lacks}")
        return self._called(target, resolved(component.args, self.roots), more)

    def _called(self, target: Callable[..., Any], args: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
        """What stands before the `/` of its signature it is handed, by name: (rows, processor, /, *, column)."""
        handed = [more[name] if name in more else getattr(self, name) for name in _handed(target)]
        return target(*handed, **args)

    def dataset(self, component: Component | None) -> Any:
        return self.make("data", component)

    def mapped(self, rows: Any) -> Any:
        if rows is None:
            return None
        for one in self.spec.data.map:
            rows = self.make("maps", one, rows=rows)
        return rows

    @cached_property
    def processor(self) -> Any:
        """As named; else the tokenizer that lies beside the model's weights."""
        return self.make("processors", self.spec.processor or self._beside_model())

    def _beside_model(self) -> Component | None:
        path = self.spec.model.args.get("path") if self.spec.model else None
        if not isinstance(path, str) or not path.startswith(ROOTS):
            return None
        folder = Path(self.roots.resolve(path))
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            return None
        return Component(use="hf/tokenizer", args={"path": path})

    @cached_property
    def model(self) -> Any:
        return self.make("models", self.spec.model)

    @cached_property
    def collator(self) -> Any:
        """As named; else what the model's kind needs; else None, and the Trainer pads or stacks."""
        if self.spec.collator is None and self.processor is not None and self.spec.model is not None:
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
"""Models whose batches need more than padding."""

HANDED = frozenset({"rows", "processor", "model"})
"""What a component may ask to be handed, by the names of its positional-only parameters."""


def _handed(target: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    return [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY and one.name in HANDED]


def find(group: str, name: str) -> EntryPoint | Own:
    """The component, not yet imported: of the job's own bundle, or a registered one. UnknownComponent with the nearest
    and the known ones."""
    if ":" in name:
        return own(group, name)
    known = registered(group)
    if name not in known:
        raise UnknownComponent(GROUPS[group], name, known)
    return known[name]


def load(group: str, name: str) -> Any:
    return find(group, name).load()


@cache
def registered(group: str) -> Mapping[str, EntryPoint]:
    """What is installed in this environment. Reading it costs milliseconds, so once per process and its children."""
    return {found.name: found for found in entry_points(group=entry_point_group(group))}


def preload() -> None:
    """For the warm parent: the registry and our own components. Foreign ones are imported by who uses them."""
    for group in GROUPS:
        registered(group)
    package = importlib.import_module("footplate.components")
    for module in pkgutil.iter_modules(package.__path__, "footplate.components."):
        importlib.import_module(module.name)
