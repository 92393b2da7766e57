"""Groups of processes that compute every batch together, and so must have read the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from footplate.contract.errors import DatasetError
from footplate.trainer.strategies.gather import mapped
from footplate.trainer.strategies.peers import Alone


def read_alike(batches: Iterator[Any], peers: Alone, size: int) -> Iterator[Any]:
    """Data that every process draws anew would teach nonsense, and nobody would know: the first batch tells."""
    first = next(batches, None)
    start = peers.rank // size * size
    group = range(start, start + size)
    told = peers.everyone(_digest(first))
    if len({told[rank] for rank in group}) > 1:
        raise DatasetError(
            f"processes {group[0]} to {group[-1]} compute every batch together, and have read an epoch's first "
            "batch each in another form: what a dataset or a collator draws at random has to come from generators "
            "that the seed sets (random, NumPy, torch), or follow from the sample's number"
        )
    if first is not None:
        yield first
        yield from batches


def _digest(batch: Any) -> str:
    found = hashlib.sha256()

    def note(leaf: Tensor) -> None:
        found.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
        found.update(leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())

    mapped(batch, note)
    return found.hexdigest()
