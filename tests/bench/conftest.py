"""Runs the benchmark's loops in this process, one after another.

The tests check what the loops do, and not how fast they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import pytest
from accelerate.state import AcceleratorState, GradientState

from bench import gpu, loop
from bench.loops.race import LOOPS


class Over(BaseException):
    """Raised when a loop has run all of its turns."""


def in_this_process(
    task: str, *, turns: int, loops: Sequence[str] = LOOPS, on_one_core: bool = True, **options: Any
) -> dict[str, Any]:
    results: dict[str, list[Any]] = {entry: [] for entry in loops}
    for item in loops:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

        def turn(what: Any, own: list[Any] = results[item]) -> None:
            own.append(what)
            if len(own) > turns:
                raise Over

        with pytest.raises(Over):
            import_module(f"bench.loops.{task}").run(item, turn, **options)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return {entry: own[1:] if turns else own[0] for entry, own in results.items()}


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    monkeypatch.setattr(loop, "race", in_this_process)
    monkeypatch.setattr(gpu, "race", in_this_process)
    return in_this_process
