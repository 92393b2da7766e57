"""Who waits, in the order in which placement tries them; and how many stand before each, whoever's they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contract.ids import JobId
from service.jobs.needs import Needs
from service.jobs.place import rank
from service.store.queue import WaitingRow


@dataclass(frozen=True, slots=True)
class Place:
    row: WaitingRow
    needs: Needs
    number: int | None
    """From 1, among those of its pool; None: it may not start yet."""
    yours: int
    """Jobs of its own project before it,"""
    others: int
    """and of others."""

    @property
    def key(self) -> tuple[int, int, int, JobId]:
        """Its place in the list, for who reads on from it while the queue moves."""
        if self.number is None:
            return 1, self.row.not_before or 0, 0, self.row.id
        return 0, *_rank(self.row)


def places(rows: Iterable[WaitingRow], now: int) -> list[Place]:
    """Those that may start in their order, then those that may not yet, by when they may."""
    shapes: dict[str, Needs] = {}
    ahead: dict[str, dict[str, int]] = {}
    found, later = [], []
    for row in sorted(rows, key=_rank):
        needs = shapes.get(row.needs)
        if needs is None:
            needs = shapes[row.needs] = Needs.from_json(row.needs)
        if row.not_before is not None and row.not_before > now:
            later.append(Place(row, needs, None, 0, 0))
            continue
        before = ahead.setdefault(needs.pool, {})
        in_all, yours = sum(before.values()), before.get(row.project, 0)
        found.append(Place(row, needs, in_all + 1, yours, in_all - yours))
        before[row.project] = yours + 1
    return found + sorted(later, key=lambda place: place.key)


def _rank(row: WaitingRow) -> tuple[int, int, JobId]:
    return rank(row.priority, row.queued_at, row.id)
