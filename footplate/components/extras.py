"""Marks components that need a library of an extra, so that a missing one is named before it is imported."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def needs(library: str, *, extra: str) -> Callable[[F], F]:
    """Marks a component that cannot be built without a library."""

    def mark(component: F) -> F:
        vars(component)["needs"] = (library, extra)
        return component

    return mark


def missing(component: Any) -> str:
    """Returns the missing library of a component, such as `transformers (pip install 'footplate[hf]')`, or nothing."""
    library, extra = getattr(component, "needs", ("", ""))
    if not library or find_spec(library) is not None:
        return ""
    return f"{library} (pip install 'footplate[{extra}]')"
