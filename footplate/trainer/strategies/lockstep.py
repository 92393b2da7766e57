"""Keeps processes with different numbers of batches in step, with padding batches for those that have run out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from footplate.trainer.strategies.device_copy import map_tensors
from footplate.trainer.strategies.peers import OneProcess, PaddingBatch

_NONE = object()


def lockstep(batches: Iterator[Any], peers: OneProcess) -> Iterator[Any]:
    """Yields as many batches as the process with the most has. A process that has run out yields padding batches."""
    last: Any = _NONE
    begins = True
    while True:
        batch = next(batches, _NONE)
        have = peers.all_gather(batch is not _NONE)
        if not any(have):
            return
        if begins and not all(have):
            last = _copied_from(batch, have.index(True), peers)
        begins, last = False, last if batch is _NONE else batch
        yield PaddingBatch(last) if batch is _NONE else batch


def _copied_from(batch: Any, source: int, peers: OneProcess) -> Any:
    """Copies a batch from the process `source`. In a small dataset a process may have no batch to make padding from."""
    return peers.all_gather(map_tensors(batch, lambda leaf: leaf.cpu()) if peers.rank == source else None)[source]
