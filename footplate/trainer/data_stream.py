"""Resumes streams at their position by the dataset's own state, and never by reading and discarding samples.

A dataset gives its position by `state_dict` and restores it by `load_state_dict`, like those of `datasets`. Each
loading process has its own copy of the dataset, so each batch carries its process's position. Random draws in a loading
process depend only on the epoch, the process and its number of batches, so a resumed run repeats them. Therefore each
epoch starts new loading processes, also with `persistent_workers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from footplate.trainer.own_generators import OwnGenerators
from footplate.trainer.samplers import DataShard
from footplate.trainer.seeds import set_seed


@dataclass(frozen=True, slots=True)
class PositionedBatch:
    """A batch, the loading process that made it, and the dataset's position after it."""

    batch: Any
    process: int
    state: dict[str, Any]
    number: int
    """The number of batches that the process has made in this epoch, including this one."""


class StreamShard(IterableDataset[Any]):
    """The shard of a stream that one process keeps: its batch of every round, which has one batch per process.

    Each process reads the whole stream, so that no process waits for another. Rounds are read completely, so that the
    stream is at the same position in all processes.
    """

    def __init__(self, stream: Any, shard: DataShard, batch_size: int) -> None:
        self.stream, self.shard, self.batch_size = stream, shard, batch_size

    def __iter__(self) -> Iterator[Any]:
        samples, size = iter(self.stream), self.batch_size
        while round_samples := list(islice(samples, size * self.shard.world)):
            yield from round_samples[self.shard.rank * size : (self.shard.rank + 1) * size]

    def __getattr__(self, name: str) -> Any:
        # Other attributes, such as state_dict and set_epoch, are those of the stream.
        if name == "stream":
            raise AttributeError(name)
        return getattr(self.stream, name)


def has_position(loader: Any) -> bool:
    data = getattr(loader, "dataset", None)
    knows = hasattr(data, "state_dict") and hasattr(data, "load_state_dict")
    return isinstance(loader, DataLoader) and isinstance(data, IterableDataset) and knows


class Stream:
    """Tracks the position of a loader over a dataset that has a position."""

    def __init__(self, loader: DataLoader[Any], place: dict[str, Any] | None) -> None:
        self.loader, self.processes = loader, loader.num_workers
        self._states: dict[int, dict[str, Any]] = dict(place["states"]) if place else {}
        self._numbers: dict[int, int] = dict(place.get("numbers", {})) if place else {}
        self._last = int(place["last"]) if place else -1
        if place and place["processes"] != self.processes:
            raise ValueError(
                f"the checkpoint's position in the data belongs to {place['processes']} loading processes, but "
                f"dataloader_num_workers is {self.processes}: use the old number"
            )

    def open(self) -> Iterator[Any]:
        """Returns an iterator over the loader's batches from the stored position on."""
        if not self.processes:
            if self._states:
                self.loader.dataset.load_state_dict(self._states[0])  # type: ignore[attr-defined]
            return iter(self.loader)
        # Ends persistent processes of the epoch before: they have old seeds, and after a resume shifted numbers.
        self.loader._iterator = None
        collate: Any = self.loader.collate_fn
        prepare = self.loader.worker_init_fn
        reader = _Reader(self)
        self.loader.collate_fn, self.loader.worker_init_fn = reader.collate, reader.begin
        try:
            return iter(self.loader)
        finally:
            self.loader.collate_fn, self.loader.worker_init_fn = collate, prepare

    def take(self, batch: Any) -> Any:
        """Returns the plain batch, and stores its position."""
        if not isinstance(batch, PositionedBatch):
            return batch
        self._states[batch.process], self._numbers[batch.process] = batch.state, batch.number
        self._last = batch.process
        return batch.batch

    def place(self) -> dict[str, Any]:
        if not self.processes:
            self._states[0] = self.loader.dataset.state_dict()  # type: ignore[attr-defined]
        numbers = {"numbers": dict(self._numbers)} if self._numbers else {}
        return {"processes": self.processes, "states": dict(self._states), "last": self._last, **numbers}


class _Reader:
    """Makes batches with their position in a loading process, from its stored position on."""

    def __init__(self, stream: Stream) -> None:
        # The stream itself is not stored, because a loading process may receive a pickled copy of this object.
        self._collate: Any = stream.loader.collate_fn
        self._prepare = stream.loader.worker_init_fn
        self._states, self._numbers = stream._states, stream._numbers
        self._last, self._processes = stream._last, stream.processes
        self._generators = OwnGenerators(self._collate)
        self._number = self._seed = 0

    def begin(self, process: int) -> None:
        """Sets up a loading process: sets its number, restores its dataset's position, and seeds its generators.

        torch takes the first batch from process 0, so after a resume that process gets the number of the process whose
        turn is next.
        """
        info: Any = get_worker_info()
        own_process = (process + self._last + 1) % self._processes
        self._seed = info.seed - process + own_process
        object.__setattr__(
            info, "id", own_process
        )  # the object is frozen, but datasets read the number of their loading process from it
        if own_process in self._states:
            info.dataset.load_state_dict(self._states[own_process])
        self._number = self._numbers.get(own_process, 0)
        if self._prepare is not None:
            self._prepare(own_process)
        self._set_seed()

    def collate(self, samples: Sequence[Any]) -> PositionedBatch:
        info: Any = get_worker_info()
        batch = self._collate(samples)
        self._number += 1
        placed = PositionedBatch(batch, info.id, info.dataset.state_dict(), self._number)
        self._set_seed()
        return placed

    def _set_seed(self) -> None:
        """Seeds the random generators for the next batch, before its first sample is read."""
        seed = (self._seed + self._number * 1_000_000_007) % 2**63
        set_seed(seed)
        self._generators.seed(seed)
