"""Gives all processes the same number of batches. A process that has none left repeats a batch, without counting it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from footplate.trainer.strategies.device_copy import map_tensors
from footplate.trainer.strategies.peers import OneProcess, PaddingBatch

_NONE = object()


def lockstep(batches: Iterator[Any], peers: OneProcess) -> Iterator[Any]:
    """Yields the same number of batches in every process. A process that has none left yields PaddingBatches."""
    last: Any = _NONE
    is_first = True
    while True:
        batch = next(batches, _NONE)
        have = peers.all_gather(batch is not _NONE)
        if not any(have):
            return
        if is_first and not all(have):
            last = _copied_from(batch, have.index(True), peers)
        is_first, last = False, last if batch is _NONE else batch
        yield PaddingBatch(last) if batch is _NONE else batch


def _copied_from(batch: Any, source: int, peers: OneProcess) -> Any:
    """Returns the batch of the process `source`, for processes that have no batch to make padding from."""
    return peers.all_gather(map_tensors(batch, lambda leaf: leaf.cpu()) if peers.rank == source else None)[source]
