"""Rounds of batches that do not divide: every process comes along in each, whether it has a batch or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from footplate.trainer.strategies.gather import mapped
from footplate.trainer.strategies.peers import Alone, Hollow

_NONE = object()


def lockstep(batches: Iterator[Any], peers: Alone) -> Iterator[Any]:
    """As many batches as the process with most of them has; one that has run out goes through the motions."""
    last: Any = _NONE
    begins = True
    while True:
        batch = next(batches, _NONE)
        have = peers.everyone(batch is not _NONE)
        if not any(have):
            return
        if begins and not all(have):
            last = _lent(batch, have.index(True), peers)
        begins, last = False, last if batch is _NONE else batch
        yield Hollow(last) if batch is _NONE else batch


def _lent(batch: Any, lender: int, peers: Alone) -> Any:
    """A set may be so small that a process has no batch of its own to go through the motions with."""
    return peers.everyone(mapped(batch, lambda leaf: leaf.cpu()) if peers.rank == lender else None)[lender]
