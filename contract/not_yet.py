"""What the spec can say and nothing here can do yet. Refused with that reason, never ignored.

This table only shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from contract.errors import Problem


class Rule(NamedTuple):
    """Where, when a value there asks for too much, and what to do instead."""

    pointer: str
    asks: Callable[[Any], bool]
    sentence: str
    hint: str | None = None


def _given(value: Any) -> bool:
    return value not in (None, [], {}, "", False)


def _more_than_one(value: Any) -> bool:
    return isinstance(value, int | float) and value > 1


ONE = "leave it out: processes_per_node and gpus_per_node are for one node"

NOT_YET = (
    Rule("/resources/nodes", _more_than_one, "a job runs on one node yet", ONE),
)  # fmt: skip

_STEPS = [(rule, rule.pointer.split("/")[1:]) for rule in NOT_YET]


def not_available(document: dict[str, Any]) -> Iterator[Problem]:
    """Over the long form, and before the types are checked: a spec with other mistakes is told these as well."""
    for rule, steps in _STEPS:
        here: Any = document
        for step in steps:
            here = here.get(step) if isinstance(here, dict) else None
        if rule.asks(here):
            yield Problem(rule.pointer, "not_available_yet", rule.sentence, rule.hint)
