"""Names become objects. The only interpreter of strings: a spec reaches code by registered names, files by roots."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from contract.components import GROUPS, entry_point_group
from contract.errors import DatasetError, UnknownComponent
from contract.parts import Component
from contract.spec import JobSpec

PATH_ARGUMENTS = frozenset({"path", "paths", "file", "files", "folder"})
"""Arguments that name files. Strings in them must name a root; anywhere else a string without one is just a string."""


@dataclass(frozen=True, slots=True)
class Roots:
    """What `data://` and `models://` mean on this node."""

    data: Path
    models: Path

    def resolve(self, name: str) -> str:
        """The file behind `data://a/b`. Nothing outside its root, whatever links lie in it."""
        scheme, _, rest = name.partition("://")
        root = {"data": self.data, "models": self.models}[scheme].resolve()
        path = (root / rest.lstrip("/")).resolve()
        if not path.is_relative_to(root):
            raise DatasetError(f"{name} leads out of {scheme}://", hint="name something inside it, without links out")
        if not path.exists():
            raise DatasetError(f"{name} is not on this node: there is no {path}", hint=f"put it below {root}")
        return str(path)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a spec named, built: the Trainer's arguments."""

    model: Any
    processor: Any
    train: Any
    eval: Any
    collator: Any
    metrics: list[Any]
    callbacks: list[Any]


def build(spec: JobSpec, roots: Roots) -> Parts:
    """Data first: what is missing there is said before a large model is loaded."""
    make = partial(_make, roots=roots)
    sets = spec.data.eval
    evaluation = {name: make("data", one) for name, one in sets.items()} if isinstance(sets, dict) else sets
    return Parts(
        train=make("data", spec.data.train),
        eval=evaluation if isinstance(evaluation, dict) else make("data", evaluation),
        processor=make("processors", spec.processor),
        model=make("models", spec.model),
        collator=make("collators", spec.collator),
        metrics=[_metric(one) for one in spec.metrics],
        callbacks=[make("callbacks", one) for one in spec.callbacks],
    )


def find(group: str, name: str) -> EntryPoint:
    """The registered component, not yet imported; UnknownComponent with the nearest and the known ones."""
    known = registered(group)
    if name not in known:
        raise UnknownComponent(GROUPS[group], name, known)
    return known[name]


@cache
def registered(group: str) -> Mapping[str, EntryPoint]:
    """What is installed in this environment. Reading it costs milliseconds, so once per process and its children."""
    return {found.name: found for found in entry_points(group=entry_point_group(group))}


def preload() -> None:
    """For the warm parent: the registry and our own components. Foreign ones are imported by who uses them."""
    for group in GROUPS:
        registered(group)
    package = importlib.import_module("worker.components")
    for module in pkgutil.iter_modules(package.__path__, "worker.components."):
        importlib.import_module(module.name)


def _make(group: str, component: Component | None, roots: Roots) -> Any:
    if component is None:
        return None
    return find(group, component.use).load()(**_resolved(component.args, roots))


def _metric(component: Component) -> Any:
    """Metrics stream through an evaluation, so the Trainer makes one per evaluation: it gets how, not what."""
    from worker.trainer.metrics import METRICS

    if component.use in registered("metrics"):
        return partial(find("metrics", component.use).load(), **component.args)
    if component.use in METRICS and not component.args:
        return component.use
    raise UnknownComponent(GROUPS["metrics"], component.use, {*registered("metrics"), *METRICS})


def _resolved(args: Mapping[str, Any], roots: Roots) -> dict[str, Any]:
    return {name: _resolved_value(value, roots, name in PATH_ARGUMENTS) for name, value in args.items()}


def _resolved_value(value: Any, roots: Roots, is_path: bool) -> Any:
    if isinstance(value, str):
        if value.startswith(("data://", "models://")):
            return roots.resolve(value)
        if is_path:
            raise DatasetError(f"{value!r} names no root", hint="write data://… or models://…")
        return value
    if isinstance(value, list):
        return [_resolved_value(item, roots, is_path) for item in value]
    if isinstance(value, dict):
        return {name: _resolved_value(item, roots, is_path or name in PATH_ARGUMENTS) for name, item in value.items()}
    return value
