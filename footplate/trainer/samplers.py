"""Samplers, which decide the order of the data, and the division of this order into batches of each process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler


class EpochSampler(Sampler[int]):
    """Shuffles with the seed `seed + epoch`. The order equals that of Accelerate's SeedableRandomSampler."""

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


class GlobalShuffle(RandomSampler):
    """Shuffles with torch's global generator, for `use_seedable_sampler: false`.

    It is a class of its own because `make_loader` replaces a plain RandomSampler by an EpochSampler.
    """


class LengthGroupedSampler(Sampler[int]):
    """Shuffles, but puts samples of similar length together, which needs less padding.

    The longest samples come first, so that an out-of-memory error happens at once. Without a generator, numbers are
    drawn from torch's global one, as Hugging Face does.
    """

    def __init__(
        self,
        batch_size: int,
        dataset: Any = None,
        lengths: Sequence[int] | torch.Tensor | None = None,
        model_input_name: str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if dataset is None and lengths is None:
            raise ValueError("LengthGroupedSampler groups samples by their lengths: pass lengths, or the dataset")
        self.batch_size, self.generator = batch_size, generator
        self.lengths = lengths_of(dataset, model_input_name) if lengths is None else [int(length) for length in lengths]

    def __iter__(self) -> Iterator[int]:
        """Yields shuffled indices in groups of about fifty batches, each group sorted by length."""
        lengths, size = self.lengths, (min(len(self.lengths) // (self.batch_size * 4), 50) or 1) * self.batch_size
        shuffled = torch.randperm(len(lengths), generator=self.generator).tolist()
        groups = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
        groups = [sorted(indices, key=lambda index: lengths[index], reverse=True) for indices in groups]
        longest = max(range(len(groups)), key=lambda number: lengths[groups[number][0]])
        groups[0][0], groups[longest][0] = groups[longest][0], groups[0][0]
        return iter([index for indices in groups for index in indices])

    def __len__(self) -> int:
        return len(self.lengths)


def lengths_of(dataset: Any, name: str | None = None, column: str | None = None) -> list[int]:
    """Returns the lengths from a column that holds them, or else measures every sample."""
    if column is not None and column in (getattr(dataset, "column_names", None) or ()):
        return [int(length) for length in dataset[column]]
    name = name or "input_ids"
    first_sample = dataset[0]
    if not isinstance(first_sample, Mapping) or name not in first_sample:
        raise ValueError(
            f"a sample's length is the length of its {name!r}, but the first sample is not a dict with {name!r}: set "
            "length_column_name to a column of lengths, or train_sampling_strategy to random"
        )
    return [len(dataset[number][name]) for number in range(len(dataset))]


class BatchRebalanceSampler(Sampler[list[int]]):
    """Splits the samples of each optimizer step into micro-batches of different size that cost about the same time.

    The cost of a micro-batch includes padding, and grows with the square of the length because of attention.
    """

    def __init__(
        self, lengths: Sequence[int], effective_batch_size: int, grad_accum: int, seed: int = 42, *, drop_last: bool
    ) -> None:
        self.lengths, self.step_size, self.groups = list(lengths), effective_batch_size, grad_accum
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        complete_steps, remaining_samples = divmod(len(self.lengths), self.step_size)
        return (complete_steps + (remaining_samples > 0 and not self.drop_last)) * self.groups

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        for step in range(len(self) // self.groups):
            samples = order[step * self.step_size : (step + 1) * self.step_size]
            while len(samples) < self.groups:
                samples += order[: self.groups - len(samples)]
            yield from self._split(samples)

    def _split(self, samples: list[int]) -> list[list[int]]:
        by_length = sorted(samples, key=lambda index: self.lengths[index], reverse=True)
        groups = _cut(by_length, self._balanced(by_length))
        return sorted(groups, key=self._cost, reverse=True)

    def _cost(self, group: list[int]) -> float:
        longest = self.lengths[group[0]]
        return len(group) * longest + 0.001 * len(group) * longest * longest

    def _balanced(self, by_length: list[int]) -> list[int]:
        """Returns the number of samples of each micro-batch, so that all of them cost about the same.

        Starts from equal sizes. Then samples move one by one from the costliest micro-batch to the cheapest.
        """
        base, remainder = divmod(len(by_length), self.groups)
        counts = [base + (number < remainder) for number in range(self.groups)]
        best, smallest_difference, previous_counts = list(counts), float("inf"), set[tuple[int, ...]]()
        for _ in range(max(self.groups * 30, self.step_size)):
            if tuple(counts) in previous_counts:
                break
            previous_counts.add(tuple(counts))
            costs = [self._cost(group) for group in _cut(by_length, counts)]
            most_costly, cheapest = costs.index(max(costs)), costs.index(min(costs))
            if costs[most_costly] - costs[cheapest] < smallest_difference:
                best, smallest_difference = list(counts), costs[most_costly] - costs[cheapest]
            if costs[most_costly] == costs[cheapest] or counts[most_costly] == 1:
                break
            counts[most_costly] -= 1
            counts[cheapest] += 1
        return best


def _cut(samples: list[int], counts: list[int]) -> list[list[int]]:
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    return [samples[end - count : end] for end, count in zip(ends, counts, strict=True)]


@dataclass(frozen=True)
class DataShard:
    """The shard of the data that one process reads. Batches are dealt in rounds, one to each process."""

    rank: int = 0
    world: int = 1
    evens: bool = False
    """True if the last round is filled up with samples from the beginning, so that all processes have equal shares.
    Otherwise the last processes may have fewer samples, or one batch less."""
    agree: Callable[[Callable[[], Any]], Any] = lambda make: make()
    """A function that lets all processes use the main process's value, for an order that is drawn at random."""


ALL_DATA = DataShard()
"""The shard of a single process, which reads every batch."""


class SeededBatch(list[int]):
    """A batch's sample indices, and the seed for the process that reads them: a function of epoch and position."""

    def __init__(self, indices: Sequence[int], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __reduce__(self) -> tuple[Any, ...]:
        return SeededBatch, (list(self), self.seed)


class Batches(Sampler[list[int]]):
    """Splits a sampler's order into batches. `start_at(k, n)` skips k batches and n further samples in one epoch.

    Skipped samples are never loaded. With our own sampler, their indices are not even computed.
    """

    def __init__(
        self, sampler: Any, batch_size: int, drop_last: bool, *, seed: int = 0, shard: DataShard = ALL_DATA
    ) -> None:
        self.sampler, self.batch_size, self.drop_last, self.seed = sampler, batch_size, drop_last, seed
        self.shard = shard
        self.epoch = self._skip = self._offset = 0
        self._drawn: Any = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def start_at(self, batch: int, offset: int = 0) -> None:
        """Makes the next epoch start at a batch, or `offset` samples after the start of that batch.

        The order is drawn at once, because the random generators may change before the first batch is read.
        """
        self._skip, self._offset, self._drawn = batch, offset, self._whole()

    @property
    def can_start_within(self) -> bool:
        """Returns True if a batch may begin at any sample. It may not if the sampler itself forms the batches."""
        return not isinstance(self.sampler, BatchRebalanceSampler)

    def samples_in(self, number: int) -> int:
        """Returns the number of samples in this process's batch `number` of a whole epoch."""
        start = (number * self.shard.world + self.shard.rank) * self.batch_size
        return max(0, min(self.batch_size, len(self.sampler) - start))

    def rounds_from(self, sample: int) -> int:
        """Returns the number of rounds, with one batch per process each, from this sample to the end of the epoch."""
        return self._rounds(max(0, len(self.sampler) - sample))

    def __iter__(self) -> Iterator[list[int]]:
        # A loader with processes makes two iterators, and reads the second only. This code runs when the first batch is
        # read, so the iterator that is never read does not use up the stored start.
        skip, stored_order = self._skip, self._drawn
        self._skip, self._drawn = 0, None
        order = self._whole() if stored_order is None else stored_order
        shard, rounds = self.shard, self._rounds(len(order) - self._offset)
        for number in range(skip * shard.world + shard.rank, rounds * shard.world, shard.world):
            batch = self._cut(order, number)
            if not batch:
                return  # other processes have the last samples of this round
            yield SeededBatch(batch, (self.seed * 1_000_003 + self.epoch * 1_000_000_007 + number) % 2**63)

    def _whole(self) -> Any:
        if isinstance(self.sampler, BatchRebalanceSampler):
            return list(self.sampler)
        if isinstance(self.sampler, (EpochSampler, SequentialSampler)):
            return _order(self.sampler)
        return self.shard.agree(lambda: _order(self.sampler))

    def samples(self, first_batch: int, count: int) -> list[int]:
        """Returns the samples of `count` batches of this epoch, or an empty list if the order is random."""
        if not isinstance(self.sampler, (EpochSampler, SequentialSampler)):
            return []
        order, shard = _order(self.sampler), self.shard
        numbers = range(first_batch * shard.world + shard.rank, (first_batch + count) * shard.world, shard.world)
        return [sample for number in numbers for sample in self._cut(order, number)]

    def _cut(self, order: Any, number: int) -> list[int]:
        """Returns the batch with this number, counted over all processes."""
        if isinstance(self.sampler, BatchRebalanceSampler):
            return list(order[number % len(order)]) if number < len(order) or self.shard.evens else []
        start = number * self.batch_size + self._offset
        batch = order[start : start + self.batch_size]
        batch = batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)
        if self.shard.evens and len(batch) < self.batch_size:
            # The batch is filled up from the beginning of the data. Data smaller than the batches of all processes is
            # repeated several times.
            places = range(max(start, len(order)), start + self.batch_size)
            batch += [int(order[place % len(order)]) for place in places]
        return batch

    def __len__(self) -> int:
        """Returns the number of rounds, equal in every process. The last round may have no batch for this process."""
        return self._rounds(len(self.sampler))

    def _rounds(self, entries: int) -> int:
        """Returns the number of rounds, with one batch per process each, in a sampler's `entries`.

        An entry is a sample, or a whole batch if the sampler makes batches.
        """
        size = 1 if isinstance(self.sampler, BatchRebalanceSampler) else self.batch_size
        in_a_round = size * self.shard.world
        return entries // in_a_round if self.drop_last else -(-entries // in_a_round)


def _order(sampler: Any) -> torch.Tensor | range | list[int]:
    """Returns a sampler's whole order in the cheapest form that can be sliced."""
    if isinstance(sampler, EpochSampler):
        return sampler.order()
    return range(len(sampler)) if isinstance(sampler, SequentialSampler) else list(sampler)
