"""Switches of the protections around a journal and its disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.faults.off import switch


@switch("every line of a journal is checked", module="worker.attempt.journal_lines")
def believe_every_line(lines: Any) -> None:
    lines.unseal = lambda line: line[9:] or None


@switch("lost events are reported as a gap", module="worker.attempt.journal")
def pass_over_what_is_lost(journal: Any) -> None:
    original = journal.Journal._from

    def without_gaps(self: Any, seq: int, last: int) -> Iterator[bytes]:
        return (event for event in original(self, seq, last) if b'"kind":"gap"' not in event[:60])

    journal.Journal._from = without_gaps


@switch("a full journal ends its attempt", module="worker.attempt.supervise")
def go_on_without_a_journal(supervise: Any) -> None:
    original = supervise.Attempt.end_with

    def end_with(self: Any, verdict: Any) -> None:
        if verdict.reason != "journal_full":
            original(self, verdict)

    supervise.Attempt.end_with = end_with
