"""Components: what a spec may name, listed without importing any of it.

Built-ins and plugins register alike, as entry points of a group such as `footplate.models`. A node describes what it
has (`Described`, made there, where the targets can be imported), announces it as a `Catalogue`, and the service checks
specs against that: names, and arguments by their JSON Schema.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from itertools import islice
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel

from footplate.contract.body import MAX_PROBLEMS
from footplate.contract.errors import InvalidSpec, Problem, UnknownComponent
from footplate.contract.explain import unique
from footplate.contract.json_schema import violations
from footplate.contract.short_forms import Json, components, located, long_form
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component

GROUPS: dict[str, str] = {
    "models": "model", "processors": "processor", "data": "dataset", "maps": "map", "collators": "collator",
    "losses": "loss", "metrics": "metric", "callbacks": "callback", "optimizers": "optimizer", "schedules": "schedule",
}  # fmt: skip
"""Each group of components, and what one of it is called."""


PACKAGES, SECRETS, HUBS = "packages", "secrets", "hubs"
"""What a catalogue tells besides, in the form of components, so that a service one version older can read it: installed
packages, with their version for a summary, the names of the secrets that this node holds, and whether it fetches from a
hub, by what its setting would say."""
HUB_ON = "FOOTPLATE_HUB=on"


def entry_point_group(group: str) -> str:
    """Where plugins register: `footplate.models`."""
    return f"footplate.{group}"


def names(group: str) -> list[str]:
    """What is registered in a group, sorted. Nothing of it is imported."""
    return sorted({found.name for found in entry_points(group=entry_point_group(group))})


class Described(BaseModel):
    """One component, as its node tells about it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    group: str
    summary: str = ""
    """One line: what it is."""
    args: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "additionalProperties": False})
    """JSON Schema of its arguments."""
    needs: str = ""
    """A library that this node does not have, and how to install it; empty where nothing is missing."""


class Catalogue(RootModel[dict[str, dict[str, Described]]]):
    """What a node has: {group: {name: Described}}. Travels as JSON, is kept by its hash."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, described: Iterable[Described]) -> Self:
        groups: dict[str, dict[str, Described]] = {group: {} for group in GROUPS}
        for one in described:
            groups.setdefault(one.group, {})[one.name] = one
        return cls(groups)

    def names(self, of: str) -> list[str] | None:
        """What is told of PACKAGES, SECRETS or HUBS; None: this node is of a version that tells none."""
        return sorted(self.root[of]) if of in self.root else None

    def get(self, group: str, name: str) -> Described | None:
        return self.root.get(group, {}).get(name)

    def known(self, group: str) -> list[str]:
        return sorted(self.root.get(group, {}))

    def as_json(self) -> dict[str, Any]:
        return {
            group: {name: one.model_dump(mode="json") for name, one in found.items()}
            for group, found in self.root.items()
        }

    @cached_property
    def hash(self) -> str:
        """sha256 of its contents: equal wherever the same components are installed, in whatever order."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def check(spec: JobSpec, catalogue: Catalogue, body: object = None) -> list[Problem]:
    """Everything a spec names that the catalogue does not have, and every argument that does not fit.

    With the user's own `body` at hand, problems point into that instead of into the long form.
    """
    problems = list(islice(_check(spec.as_json(), catalogue), MAX_PROBLEMS))
    return located(problems, body) if problems and isinstance(body, dict) else problems


def check_beside(invalid: InvalidSpec, body: Json, catalogue: Catalogue) -> InvalidSpec:
    """With what the catalogue has against a body that is no spec for other reasons, so that all is told at once."""
    told = {one.pointer for one in invalid.problems}
    more = located(islice(_check(long_form(body).document, catalogue), MAX_PROBLEMS), body)
    return InvalidSpec(unique([*invalid.problems, *(one for one in more if one.pointer not in told)]))


def _check(document: Json, catalogue: Catalogue) -> Iterator[Problem]:
    for pointer, group, component in components(document):
        # Code of the user's own is described by nobody; it is looked at in its training process alone.
        is_known_kind = ":" not in component["use"] and group in GROUPS
        if is_known_kind and isinstance(component.get("args", {}), dict):
            yield from check_component(component, group, catalogue, pointer)


def check_component(
    component: Component | Mapping[str, Any], group: str, catalogue: Catalogue, pointer: str
) -> list[Problem]:
    """One component against the catalogue."""
    given = component.model_dump() if isinstance(component, Component) else component
    found = catalogue.get(group, given["use"])
    if found is None:
        unknown = UnknownComponent(GROUPS[group], given["use"], catalogue.known(group))
        return [Problem(f"{pointer}/use", unknown.code, unknown.message, unknown.hint)]
    if found.needs:
        detail = f"{found.name!r} needs what no node has: {found.needs}"
        return [Problem(f"{pointer}/use", "not_installed", detail, "install it on a node, and start that again")]
    return violations(found.args, given.get("args", {}), f"{pointer}/args")
