"""Checks that the processes which compute every batch together have read the same batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from footplate.contract.errors import DatasetError
from footplate.trainer.strategies.device_copy import tensors_in
from footplate.trainer.strategies.peers import OneProcess


def require_same_batch(batches: Iterator[Any], peers: OneProcess, size: int) -> Iterator[Any]:
    """Yields an epoch's batches. Raises DatasetError if the processes of a group have different first batches."""
    first = next(batches, None)
    start = peers.rank // size * size
    group = range(start, start + size)
    digests = peers.all_gather(_digest(first))
    if len({digests[rank] for rank in group}) > 1:
        raise DatasetError(
            f"processes {group[0]} to {group[-1]} compute every batch together, but have read different first batches "
            "of an epoch: random choices in a dataset or collator must come from generators "
            "that the seed sets (random, NumPy, torch), or follow from the sample's number"
        )
    if first is not None:
        yield first
        yield from batches


def _digest(batch: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors_in(batch):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
