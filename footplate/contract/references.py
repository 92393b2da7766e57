"""The names in an accepted spec: its components, and the files in their arguments.

This module walks the typed spec, not its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from footplate.contract.body import pointer_to
from footplate.contract.files import ArgumentText, texts_in
from footplate.contract.short_forms import GROUP_OF, GROUP_OF_LIST
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component, Optimizer

Path = tuple[str | int, ...]


class Used(NamedTuple):
    """A component of a spec, its place there, and the group of components to which it belongs."""

    path: Path
    group: str
    component: Component | Optimizer

    @property
    def pointer(self) -> str:
        return pointer_to(*self.path)


def used(spec: JobSpec) -> Iterator[Used]:
    """Yields every component that the spec names."""
    for name, group in GROUP_OF.items():
        if isinstance(component := getattr(spec, name), Component):
            yield Used((name,), group, component)
    for name, group in GROUP_OF_LIST.items():
        for index, listed in enumerate(getattr(spec, name) or ()):
            yield Used((name, index), group, listed)
    for index, optimizer in enumerate(spec.optimizers or ()):
        if optimizer.schedule is not None:
            yield Used(("optimizers", index, "schedule"), "schedules", optimizer.schedule)
    data = spec.data
    sets = data.eval if isinstance(data.eval, dict) else {}
    datasets: dict[Path, object] = {("train",): data.train, ("test",): data.test, ("eval",): data.eval}
    datasets |= {("eval", name): dataset for name, dataset in sets.items()}
    for path, dataset in datasets.items():
        if isinstance(dataset, Component):
            yield Used(("data", *path), "data", dataset)
    for index, step in enumerate(data.map):
        yield Used(("data", "map", index), "maps", step)


def references(spec: JobSpec) -> list[ArgumentText]:
    """Returns every text in the arguments of the spec's components, and the folder that it resumes from."""
    texts = [said for component in used(spec) for said in texts_in(component.component.args, (*component.path, "args"))]
    if spec.resume_from is not None:
        texts += texts_in(spec.resume_from.path, ("resume_from", "path"))
    return texts
