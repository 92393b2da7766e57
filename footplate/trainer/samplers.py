"""The order of the data: where it can be a pure function of (seed, epoch), any place in it is found without a walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

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


class LengthGroupedSampler(Sampler[int]):
    """Random, but samples of like length come together: less padding. The longest comes first, so that what does not
    fit into memory is known at once.

    Without a generator it draws from torch's own, as the reference's does.
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
            raise ValueError("grouping by length needs lengths, or a dataset to count them in")
        self.batch_size, self.generator = batch_size, generator
        self.lengths = lengths_of(dataset, model_input_name) if lengths is None else [int(each) for each in lengths]

    def __iter__(self) -> Iterator[int]:
        return iter(length_grouped(self.lengths, self.batch_size, self.generator))

    def __len__(self) -> int:
        return len(self.lengths)


def lengths_of(dataset: Any, name: str | None = None, column: str | None = None) -> list[int]:
    """From the column that holds them, where there is one; else counted in every sample."""
    if column is not None and column in (getattr(dataset, "column_names", None) or ()):
        return [int(each) for each in dataset[column]]
    name = name or "input_ids"
    first = dataset[0]
    if not isinstance(first, Mapping) or name not in first:
        raise ValueError(
            f"lengths are counted in samples that are dicts with {name!r}, and these have none: name a column that "
            "holds them in length_column_name, or use train_sampling_strategy random"
        )
    return [len(dataset[number][name]) for number in range(len(dataset))]


def length_grouped(lengths: Sequence[int], batch_size: int, generator: torch.Generator | None = None) -> list[int]:
    """Shuffled, cut into some fifty batches at a time, each such part sorted by length."""
    part = (min(len(lengths) // (batch_size * 4), 50) or 1) * batch_size
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    parts = [shuffled[start : start + part] for start in range(0, len(shuffled), part)]
    parts = [sorted(each, key=lambda index: lengths[index], reverse=True) for each in parts]
    longest = max(range(len(parts)), key=lambda number: lengths[parts[number][0]])
    parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
    return [index for each in parts for index in each]


class BatchRebalanceSampler(Sampler[list[int]]):
    """Batches of unlike size and like weight: the samples of one optimizer step are parted by what they cost.

    Padding counts, and attention's square does. A step always sees the same number of samples.
    """

    def __init__(
        self, lengths: Sequence[int], effective_batch_size: int, grad_accum: int, seed: int = 42, *, drop_last: bool
    ) -> None:
        self.lengths, self.step_size, self.groups = list(lengths), effective_batch_size, grad_accum
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.lengths), self.step_size)
        return (whole + (rest > 0 and not self.drop_last)) * self.groups

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        for step in range(len(self) // self.groups):
            samples = order[step * self.step_size : (step + 1) * self.step_size]
            while len(samples) < self.groups:
                samples += order[: self.groups - len(samples)]
            yield from self._parted(samples)

    def _parted(self, samples: list[int]) -> list[list[int]]:
        by_length = sorted(samples, key=lambda index: self.lengths[index], reverse=True)
        groups = _cut(by_length, self._balanced(by_length))
        return sorted(groups, key=self._cost, reverse=True)

    def _cost(self, group: list[int]) -> float:
        longest = self.lengths[group[0]]
        return len(group) * longest + 0.001 * len(group) * longest * longest

    def _balanced(self, by_length: list[int]) -> list[int]:
        """How many samples each group gets: the dearest hands one to the cheapest, until that no longer helps."""
        base, more = divmod(len(by_length), self.groups)
        counts = [base + (number < more) for number in range(self.groups)]
        best, least, seen = list(counts), float("inf"), set[tuple[int, ...]]()
        for _ in range(max(self.groups * 30, self.step_size)):
            if tuple(counts) in seen:
                break
            seen.add(tuple(counts))
            costs = [self._cost(group) for group in _cut(by_length, counts)]
            dearest, cheapest = costs.index(max(costs)), costs.index(min(costs))
            if costs[dearest] - costs[cheapest] < least:
                best, least = list(counts), costs[dearest] - costs[cheapest]
            if costs[dearest] == costs[cheapest] or counts[dearest] == 1:
                break
            counts[dearest] -= 1
            counts[cheapest] += 1
        return best


def _cut(samples: list[int], counts: list[int]) -> list[list[int]]:
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    return [samples[end - count : end] for end, count in zip(ends, counts, strict=True)]


@dataclass(frozen=True)
class Share:
    """Of every round of batches, one per process, this process's."""

    rank: int = 0
    world: int = 1
    evens: bool = False
    """Samples from the beginning fill the last round up, so that all processes have as much. Else the last of them may
    have fewer, or a batch less."""
    agree: Callable[[Callable[[], Any]], Any] = lambda make: make()
    """An order that is drawn at random must be the same one in every process."""


ALL = Share()


class Numbered(list[int]):
    """A batch's samples, and what to seed the process with that reads them: a function of epoch and place."""

    def __init__(self, indices: Sequence[int], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __reduce__(self) -> tuple[Any, ...]:
        return Numbered, (list(self), self.seed)


class Batches(Sampler[list[int]]):
    """Cuts a sampler's order into batches, and starts at any of them: `start_at(k)` leaves k batches out, once.

    What is left out is never loaded. With our own sampler it is not even walked over.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool, *, seed: int = 0, share: Share = ALL) -> None:
        self.sampler, self.batch_size, self.drop_last, self.seed = sampler, batch_size, drop_last, seed
        self.share = share
        self.epoch = self._skip = 0
        self._drawn: Any = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def start_at(self, batch: int) -> None:
        """Draws the order now: what it is drawn from may be set to something else before the first batch is read."""
        self._skip, self._drawn = batch, self._whole()

    def __iter__(self) -> Iterator[list[int]]:
        # Taken with the first batch only: a loader with processes asks for an iterator twice, and uses the second.
        skip, drawn = self._skip, self._drawn
        self._skip, self._drawn = 0, None
        order = self._whole() if drawn is None else drawn
        share, rounds = self.share, self._rounds(len(order))
        for number in range(skip * share.world + share.rank, rounds * share.world, share.world):
            batch = self._cut(order, number)
            if not batch:
                return  # the others of this round have the last samples
            yield Numbered(batch, (self.seed * 1_000_003 + self.epoch * 1_000_000_007 + number) % 2**63)

    def _whole(self) -> Any:
        if isinstance(self.sampler, BatchRebalanceSampler):
            return list(self.sampler)
        if isinstance(self.sampler, (EpochSampler, SequentialSampler)):
            return _order(self.sampler)
        return self.share.agree(lambda: _order(self.sampler))

    def samples(self, first: int, count: int) -> list[int]:
        """Those of so many batches of this epoch. Empty where the order cannot be told without drawing it anew."""
        if not isinstance(self.sampler, (EpochSampler, SequentialSampler)):
            return []
        order, share = _order(self.sampler), self.share
        numbers = range(first * share.world + share.rank, (first + count) * share.world, share.world)
        return [sample for number in numbers for sample in self._cut(order, number)]

    def _cut(self, order: Any, number: int) -> list[int]:
        """Batch number so many of all processes'."""
        if isinstance(self.sampler, BatchRebalanceSampler):
            return list(order[number % len(order)]) if number < len(order) or self.share.evens else []
        start = number * self.batch_size
        batch = order[start : start + self.batch_size]
        batch = batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)
        if self.share.evens and len(batch) < self.batch_size:
            # On from the beginning, and around as often as it takes where the data is less than one round.
            places = range(max(start, len(order)), start + self.batch_size)
            batch += [int(order[place % len(order)]) for place in places]
        return batch

    def __len__(self) -> int:
        """In every process; it may be that the last one is another's only."""
        return self._rounds(len(self.sampler))

    def _rounds(self, entries: int) -> int:
        """Of one batch per process. A sampler's entries are samples, or batches already."""
        size = 1 if isinstance(self.sampler, BatchRebalanceSampler) else self.batch_size
        in_a_round = size * self.share.world
        return entries // in_a_round if self.drop_last else -(-entries // in_a_round)


def _order(sampler: Any) -> torch.Tensor | range | list[int]:
    """All of a sampler's numbers, in the cheapest form that can be cut anywhere."""
    if isinstance(sampler, EpochSampler):
        return sampler.order()
    return range(len(sampler)) if isinstance(sampler, SequentialSampler) else list(sampler)
