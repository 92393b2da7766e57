"""Libraries that only some components need: each comes with an extra. Where it is missing, who asks is told of that."""

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
    """`transformers (pip install 'footplate[hf]')`, or nothing where this environment has what it needs."""
    library, extra = getattr(component, "needs", ("", ""))
    if not library or find_spec(library) is not None:
        return ""
    return f"{library} (pip install 'footplate[{extra}]')"
