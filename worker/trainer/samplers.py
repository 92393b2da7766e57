"""The order of the data: a pure function of (seed, epoch), so that any place in it is found without walking to it."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler, SequentialSampler


class EpochSampler(Sampler[int]):
    """Shuffles by (seed + epoch). The reference's seedable sampler makes the same order, so the curves are the same."""

    def __init__(self, data_source: Sized, seed: int) -> None:
        self.data_source, self.seed, self.epoch = data_source, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(len(self.data_source), generator=generator)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order().tolist())

    def __len__(self) -> int:
        return len(self.data_source)


class Batches(Sampler[list[int]]):
    """Cuts a sampler's order into batches, and starts at any of them: `start_at(k)` leaves k batches out, once.

    What is left out is never loaded. With our own sampler it is not even walked over.
    """

    def __init__(self, sampler: Sampler[int], batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self._skip = 0

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def start_at(self, batch: int) -> None:
        self._skip = batch

    def __iter__(self) -> Iterator[list[int]]:
        skip, self._skip = self._skip * self.batch_size, 0
        order = _order(self.sampler)
        for start in range(skip, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)

    def __len__(self) -> int:
        samples = len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


def _order(sampler: Sampler[int]) -> torch.Tensor | range | list[int]:
    """All of a sampler's numbers, in the cheapest form that can be cut anywhere."""
    if isinstance(sampler, EpochSampler):
        return sampler.order()
    return range(len(sampler)) if isinstance(sampler, SequentialSampler) else list(sampler)
