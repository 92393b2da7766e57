"""Detects which of the Trainer's methods a subclass, or one object, replaces. No other module does that itself.

A shortcut is a faster way that leaves out the calls of some methods. Each such method is marked with `left_out_by`
where it is defined. A shortcut is allowed only while none of its methods is replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


class Shortcut(Enum):
    TRAINING_STEP = auto()
    """The loop computes forward and backward of a micro-batch itself, and does not call `training_step`."""
    PREDICTION_STEP = auto()
    """An evaluation computes the forward of a batch itself, and does not call `prediction_step`."""
    PLAIN_SAVE = auto()
    """A checkpoint is written from a copy of the weights: in the background, or as a trial before the first step."""
    COUNT_IN_ALL_PROCESSES = auto()
    """The labels of a step are counted by the Trainer itself and added up over all processes."""
    KNOWN_METRICS = auto()
    """The names of metrics are taken from the arguments. Otherwise only the first evaluation shows them."""


def left_out_by(*shortcuts: Shortcut) -> Callable[[Method], Method]:
    """Marks a method of the Trainer that these shortcuts do not call."""

    def mark(method: Method) -> Method:
        method._left_out_by = frozenset(shortcuts)  # type: ignore[attr-defined]
        return method

    return mark


def methods_of(facade: type) -> Mapping[str, Any]:
    """Returns the methods and properties of the Trainer, as they are when its module is imported.

    A script that assigns to the class later therefore replaces a method, as a subclass does.
    """
    names = [name for name in dir(facade) if not name.startswith("__")]
    attributes = {name: inspect.getattr_static(facade, name) for name in names}
    return MappingProxyType(
        {
            name: attribute
            for name, attribute in attributes.items()
            if callable(attribute) or isinstance(attribute, staticmethod | property)
        }
    )


class Overrides:
    """The methods of one Trainer that are not the facade's own."""

    def __init__(self, trainer: object, methods: Mapping[str, Any]) -> None:
        self._trainer, self._methods = trainer, methods
        kind = type(trainer)
        self._in_class = frozenset(
            name for name, method in methods.items() if inspect.getattr_static(kind, name) is not method
        )

    def __contains__(self, name: str) -> bool:
        """Returns True if the class, or the object since it was made, replaces the method of this name."""
        if name not in self._methods:
            raise KeyError(f"the Trainer has no method {name}")
        return name in self._in_class or name in vars(self._trainer)

    def allow(self, shortcut: Shortcut) -> bool:
        return not self.against(shortcut)

    def against(self, shortcut: Shortcut) -> list[str]:
        """The replaced methods that the shortcut would not call."""
        return [
            name
            for name, method in self._methods.items()
            if shortcut in getattr(method, "_left_out_by", ()) and name in self
        ]
