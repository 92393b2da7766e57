"""Switches of the protections around a training that says too much."""

from __future__ import annotations

from types import ModuleType

from tests.faults.off import switch


@switch("lines are never too many", module="worker.attempt.rank_process")
def keep_every_line(lines: ModuleType) -> None:
    lines.BURST_LINES = lines.LINES_PER_SECOND = 1e9
