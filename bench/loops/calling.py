"""Counts the Python functions that a step of the tiny MLP calls, with those of its data and of torch."""

from __future__ import annotations

import sys
from typing import Any

from bench.loops.race import Turn
from bench.loops.training import train
from bench.loops.work import LOG_EVERY, WORKS, Work


def run(loop: str, turn: Turn) -> None:
    turn(calls_in_a_step(loop, WORKS["mlp"]))


def calls_in_a_step(loop: str, work: Work) -> float:
    """Returns the mean of twenty steps, after everything that is made only once has been made."""
    calls, first, last = 0, 4 * LOG_EVERY, 6 * LOG_EVERY

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    def mark(step: int, loss: float) -> None:
        if step == first:
            sys.setprofile(count)
        if step == last:
            sys.setprofile(None)

    train(loop, work, last, mark)
    return calls / (last - first)
