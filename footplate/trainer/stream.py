"""Resumes streams at their position by the dataset's own state, and never by reading and discarding samples.

A dataset gives its position by `state_dict` and restores it by `load_state_dict`, like those of `datasets`. Each
loading process has its own copy of the dataset, so each batch carries its process's position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from footplate.trainer.samplers import Share

Collator = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class PositionedBatch:
    """A batch, the loading process that made it, and the dataset's position after it."""

    batch: Any
    process: int
    state: dict[str, Any]


class ShareOfStream(IterableDataset[Any]):
    """The share of one process: its batch of every round, which has one batch per process.

    Each process reads the whole stream, so no process waits for another, and keeps only its own batch. Rounds are read
    completely, so that the stream is at the same position in all processes.
    """

    def __init__(self, stream: Any, share: Share, batch_size: int) -> None:
        self.stream, self.share, self.batch_size = stream, share, batch_size

    def __iter__(self) -> Iterator[Any]:
        samples, size = iter(self.stream), self.batch_size
        while round_samples := list(islice(samples, size * self.share.world)):
            yield from round_samples[self.share.rank * size : (self.share.rank + 1) * size]

    def __getattr__(self, name: str) -> Any:
        # Everything else, such as the position and the epoch, comes from the stream.
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
        self._last = int(place["last"]) if place else -1
        if place and place["processes"] != self.processes:
            raise ValueError(
                f"the checkpoint's position in the data belongs to {place['processes']} loading processes, but "
                f"dataloader_num_workers is {self.processes}: use the old number"
            )

    def open(self) -> Iterator[Any]:
        """Returns an iterator from the position on. The loader's functions are replaced only during this call."""
        if not self.processes:
            if self._states:
                self.loader.dataset.load_state_dict(self._states[0])  # type: ignore[attr-defined]
            return iter(self.loader)
        collate: Any = self.loader.collate_fn
        prepare = self.loader.worker_init_fn
        self.loader.collate_fn = partial(_placed, collate)
        self.loader.worker_init_fn = partial(_go_to, prepare, self._states, self._last, self.processes)
        try:
            return iter(self.loader)
        finally:
            self.loader.collate_fn, self.loader.worker_init_fn = collate, prepare

    def take(self, batch: Any) -> Any:
        """Returns the plain batch, and stores its position."""
        if not isinstance(batch, PositionedBatch):
            return batch
        self._states[batch.process], self._last = batch.state, batch.process
        return batch.batch

    def place(self) -> dict[str, Any]:
        if not self.processes:
            self._states[0] = self.loader.dataset.state_dict()  # type: ignore[attr-defined]
        return {"processes": self.processes, "states": dict(self._states), "last": self._last}


def _placed(collate: Collator, samples: Sequence[Any]) -> PositionedBatch:
    process: Any = get_worker_info()
    return PositionedBatch(collate(samples), process.id, process.dataset.state_dict())


def _go_to(
    prepare: Callable[[int], None] | None, states: dict[int, dict[str, Any]], last: int, processes: int, process: int
) -> None:
    """Sets up a loading process. torch asks process 0 first, so it takes the share of the process that is next."""
    info: Any = get_worker_info()
    own = (process + last + 1) % processes
    object.__setattr__(info, "id", own)  # the info is frozen, but the dataset reads its share's number only there
    if own in states:
        info.dataset.load_state_dict(states[own])
    if prepare is not None:
        prepare(own)
