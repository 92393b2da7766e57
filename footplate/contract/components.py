"""Components are the models, datasets and other objects that a spec may name. This module imports none of them.

Built-ins and plugins register in the same way, as entry points of a group such as `footplate.models`. A node describes
its components (`Described`) and announces them as a `Catalogue`. The service checks names and arguments of specs
against it, without importing any component.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from importlib.metadata import entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

from pydantic import ConfigDict, Field, RootModel

from footplate.contract.arguments.read import ARGUMENT_NAMES
from footplate.contract.errors import Problem, UnknownComponent, did_you_mean
from footplate.contract.fields import InternalMessage, Json
from footplate.contract.json_schema import violations

if TYPE_CHECKING:
    from footplate.contract.spec import JobSpec

GROUPS: dict[str, str] = {
    "models": "model", "processors": "processor", "data": "dataset", "maps": "map", "collators": "collator",
    "losses": "loss", "metrics": "metric", "callbacks": "callback", "optimizers": "optimizer", "schedules": "schedule",
    "trainers": "trainer", "rewards": "reward",
}  # fmt: skip
"""Each group of components, and the word for a single component of the group."""


PACKAGES, SECRETS, HUBS = "packages", "secrets", "hubs"
"""Groups of a catalogue that do not hold components, but other facts about the node in the form of components.

PACKAGES has the installed packages with their versions as summaries. SECRETS has the names of the node's secrets. HUBS
has the node's setting for hubs.
"""
HUB_ON = "FOOTPLATE_HUB=on"


def entry_point_group(group: str) -> str:
    """Returns the entry-point group in which plugins register, such as `footplate.models`."""
    return f"footplate.{group}"


def names(group: str) -> list[str]:
    """Returns the registered names of a group, sorted, without importing anything."""
    return sorted({entry_point.name for entry_point in entry_points(group=entry_point_group(group))})


class Described(InternalMessage):
    """One component as its node describes it."""

    name: str
    group: str
    summary: str = ""
    """One line about the component."""
    args: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "additionalProperties": False})
    """JSON Schema of its arguments."""
    needs: str = ""
    """The library that this node lacks, and how to install it. Empty if none is missing."""
    rows: list[dict[str, Any]] = Field(default_factory=list)
    """JSON Schemas of the forms that the rows of a trainer may have. Empty for other components."""
    ignores: list[str] = Field(default_factory=list)
    """The fields of a spec that a trainer does not use, so that a job must not have them."""


class Catalogue(RootModel[dict[str, dict[str, Described]]]):
    """The components of a node by group and name. A node sends its catalogue as JSON, and SQL stores it by its hash."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, components: Iterable[Described]) -> Self:
        groups: dict[str, dict[str, Described]] = {group: {} for group in GROUPS}
        for component in components:
            groups.setdefault(component.group, {})[component.name] = component
        return cls(groups)

    def get(self, group: str, name: str) -> Described | None:
        return self.root.get(group, {}).get(name)

    def known(self, group: str) -> list[str]:
        return sorted(self.root.get(group, {}))

    def as_json(self) -> dict[str, Any]:
        groups: dict[str, Any] = self.model_dump(mode="json")
        return groups

    def problems(self, spec: JobSpec) -> Iterator[Problem]:
        """Yields what the nodes lack for this spec, arguments that do not fit, and fields that its trainer ignores."""
        yield from _check(spec, self)
        yield from _ignored(spec, self)

    @cached_property
    def hash(self) -> str:
        """The sha256 of the contents, equal on all nodes with the same components."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _check(spec: JobSpec, catalogue: Catalogue) -> Iterator[Problem]:
    """Yields a problem for each component that the catalogue lacks and for each argument that its schema refuses."""
    for used in spec.components:
        pointer, group, name, arguments = used.pointer, used.group, used.component.use, used.component.args
        # A user's own code is not checked here, because a node cannot describe it before training.
        if ":" in name or group not in GROUPS:
            continue
        component = catalogue.get(group, name)
        if component is None:
            unknown = UnknownComponent(GROUPS[group], name, catalogue.known(group))
            hint = unknown.hint or (pretrained(name) if group == "models" else None)
            yield Problem(f"{pointer}/use", unknown.code, unknown.message, hint)
        elif component.needs:
            detail = f"{name!r} needs a library that no node has: {component.needs}"
            yield Problem(f"{pointer}/use", "not_installed", detail, "install it on a node, and restart the node")
        else:
            missing_names = [argument for argument in component.args.get("required", ()) if argument not in arguments]
            if missing_names:
                yield _missing(pointer, component, missing_names, arguments)
            optional = {**component.args, "required": []}
            problems = violations(optional, arguments, f"{pointer}/args")
            yield from map(_with_names_of_training, problems) if group == "trainers" else problems


def _with_names_of_training(problem: Problem) -> Problem:
    """Returns the problem with a hint if an unknown argument of a trainer is a misspelt training argument."""
    name = problem.pointer.rpartition("/")[2]
    if problem.code != "unknown_argument" or not (hint := did_you_mean(name[:80], ARGUMENT_NAMES)):
        return problem
    return replace(problem, hint=problem.hint or hint)


def _ignored(spec: JobSpec, catalogue: Catalogue) -> Iterator[Problem]:
    """Yields a problem for each field of the spec that its trainer would ignore."""
    trainer = spec.library_trainer
    component = None if trainer is None else catalogue.get("trainers", trainer.use)
    if component is None:
        return
    for name in component.ignores:
        if attrgetter(name)(spec):
            pointer = "/" + name.replace(".", "/")
            yield Problem(pointer, "disagreement", f"{component.name} does not use this field", "leave it out")


def _missing(pointer: str, component: Described, missing_names: list[str], arguments: Json) -> Problem:
    """Returns one problem for all arguments that a component requires and that the spec lacks."""
    properties = component.args.get("properties", {})
    meanings = [f"{name!r} ({text})" if (text := _meaning(properties, name)) else repr(name) for name in missing_names]
    arguments = {name: value for name, value in arguments.items() if name in properties}
    example = {
        "use": component.name,
        "args": {**arguments, **{name: _example(properties, name) for name in missing_names}},
    }
    noun = "argument" if len(missing_names) == 1 else "arguments"
    detail = f"{component.name} needs the {noun} {', '.join(meanings)}"
    return Problem(f"{pointer}/args/{missing_names[0]}", "missing", detail, f"for example {json.dumps(example)[:400]}")


def _meaning(properties: Json, name: str) -> str:
    return " ".join(str(properties.get(name, {}).get("description", "")).split()).rstrip(".")


_EXAMPLES: Json = {
    "column": "text", "columns": {"old": "new"}, "path": "models://gpt2", "paths": ["data://train.jsonl"],
    "block_size": 512,
}  # fmt: skip
_EXAMPLES_OF_TYPES: Json = {"integer": 1, "number": 0.1, "boolean": True, "array": ["name"], "object": {}}


def _example(properties: Json, name: str) -> Any:
    kind = properties.get(name, {}).get("type")
    example = _EXAMPLES.get(name)
    if example is None or (kind == "array") != isinstance(example, list):
        return _EXAMPLES_OF_TYPES.get(kind, "text")
    return example


def pretrained(name: str) -> str:
    """Returns the hint for a spec that names a pretrained model instead of a component."""
    path = name if "://" in name else f"hub://{name}"
    example = {"use": "hf/causal-lm", "args": {"path": path[:120]}}
    return f"a pretrained model is the path of a component: {json.dumps(example)}, or hf/sequence-classification"
