"""The names in an accepted spec: its components, and the files in their arguments.

This module walks the typed spec, not its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from footplate.contract.body import pointer_to
from footplate.contract.files import ArgumentText, texts_in
from footplate.contract.short_forms import Place, places
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component, Optimizer


class Used(NamedTuple):
    """A component of a spec, its place there, and the group of components to which it belongs."""

    path: Place
    group: str
    component: Component | Optimizer

    @property
    def pointer(self) -> str:
        return pointer_to(*self.path)


def used(spec: JobSpec) -> Iterator[Used]:
    """Yields every component that the spec names."""
    for path, group, value in places(spec):
        if isinstance(value, Component | Optimizer):
            yield Used(path, group, value)
        elif group == "rewards" and isinstance(value, dict):
            # Reward functions are inside a trainer's arguments, which are JSON.
            yield Used(path, group, Component.model_validate(value))


def references(spec: JobSpec) -> list[ArgumentText]:
    """Returns every text in the arguments of the spec's components, and the folder that it resumes from."""
    texts = [said for component in used(spec) for said in texts_in(component.component.args, (*component.path, "args"))]
    if spec.resume_from is not None:
        texts += texts_in(spec.resume_from.path, ("resume_from", "path"))
    return texts
