"""The names in a spec: its components, and the texts in their arguments, which may name files.

`JobSpec.components` and `JobSpec.texts` keep the results, so that a spec is walked once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from footplate.contract.body import pointer_to
from footplate.contract.files import ArgumentText, texts_in
from footplate.contract.short_forms import REWARDS, Place
from footplate.contract.spec_parts import Component, Optimizer, is_component

if TYPE_CHECKING:
    from footplate.contract.spec import JobSpec

GROUP_OF = {
    "model": "models", "processor": "processors", "collator": "collators", "loss": "losses",
    "compute_metrics": "metrics", "trainer": "trainers", "loop": "loops",
}  # fmt: skip
GROUP_OF_LIST = {"metrics": "metrics", "callbacks": "callbacks", "optimizers": "optimizers"}


class UsedComponent(NamedTuple):
    """A component that a spec names, its path in the spec, and its group, such as "models"."""

    path: Place
    group: str
    component: Component | Optimizer

    @property
    def pointer(self) -> str:
        return pointer_to(*self.path)


def components_of(spec: JobSpec) -> Iterator[UsedComponent]:
    """Yields every component that the spec names."""
    for name, group in GROUP_OF.items():
        # `loop` may also be a Script, which is not a component.
        if isinstance(component := getattr(spec, name), Component):
            yield UsedComponent((name,), group, component)
    for name, group in GROUP_OF_LIST.items():
        for index, component in enumerate(getattr(spec, name) or ()):
            yield UsedComponent((name, index), group, component)
    for index, optimizer in enumerate(spec.optimizers or ()):
        if optimizer.schedule is not None:
            yield UsedComponent(("optimizers", index, "schedule"), "schedules", optimizer.schedule)
    for path, dataset in spec.data.sets():
        yield UsedComponent(("data", *path), "data", dataset)
    for index, component in enumerate(spec.data.map):
        yield UsedComponent(("data", "map", index), "maps", component)
    # Reward functions are part of the trainer's arguments. These are plain JSON, so rewards are parsed here.
    rewards = spec.trainer.args.get(REWARDS) if spec.trainer is not None else None
    for index, reward in enumerate(rewards if isinstance(rewards, list) else ()):
        if is_component(reward):
            yield UsedComponent(("trainer", "args", REWARDS, index), "rewards", Component.model_validate(reward))


def texts_of(spec: JobSpec) -> Iterator[ArgumentText]:
    """Yields every text in the arguments of the spec's components, and the folder that it resumes from."""
    for used in spec.components:
        if used.component.args:
            yield from texts_in(used.component.args, (*used.path, "args"))
    if spec.resume_from is not None:
        yield from texts_in(spec.resume_from.path, ("resume_from", "path"))
