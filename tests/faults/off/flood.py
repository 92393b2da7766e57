"""Switches of the protections around training that prints or sends too much."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("the number of lines is limited", module="worker.attempt.rank_process")
def keep_every_line(lines: Any) -> None:
    lines.BURST_LINES = lines.LINES_PER_SECOND = 1e9
