"""Detects which of the Trainer's methods a subclass, or a single object, overrides. No other module detects that.

A shortcut is a faster code path that does not call some methods of the Trainer. `left_out_by` marks these methods where
they are defined. A shortcut is used only if none of its methods is overridden.
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
    """A checkpoint is written from a copy of the weights, without `save_model` and the other methods of saving."""
    COUNT_IN_ALL_PROCESSES = auto()
    """The labels of a step are counted and added up over all processes, without `get_batch_samples`."""
    KNOWN_METRICS = auto()
    """The names of an evaluation's metrics are known before training, because no method can add others."""


def left_out_by(*shortcuts: Shortcut) -> Callable[[Method], Method]:
    """Returns a decorator for a method of the Trainer that these shortcuts do not call."""

    def mark(method: Method) -> Method:
        method._left_out_by = frozenset(shortcuts)  # type: ignore[attr-defined]
        return method

    return mark


def methods_of(facade: type) -> Mapping[str, Any]:
    """Returns the Trainer class's methods and properties at the time when its module is imported.

    If a script assigns to the class later, that counts as an override.
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
    """The methods of one Trainer object that its class or the object itself overrides.

    Each check looks at the class again, because a test may patch a method after the object was made.
    """

    def __init__(self, trainer: object, methods: Mapping[str, Any]) -> None:
        self._trainer, self._methods = trainer, methods

    def __contains__(self, name: str) -> bool:
        """Returns True if the class or the object overrides the method of this name."""
        if name not in self._methods:
            raise KeyError(f"the Trainer has no method {name}")
        in_class = inspect.getattr_static(type(self._trainer), name)
        return in_class is not self._methods[name] or name in vars(self._trainer)

    def allow(self, shortcut: Shortcut) -> bool:
        return not self.against(shortcut)

    def against(self, shortcut: Shortcut) -> list[str]:
        """Returns the names of the overridden methods that the shortcut would not call."""
        return [
            name
            for name, method in self._methods.items()
            if shortcut in getattr(method, "_left_out_by", ()) and name in self
        ]
