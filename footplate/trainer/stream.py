"""Data without numbers comes back to its place by its own state: never by reading and throwing away.

A dataset says where it is by `state_dict` and goes there by `load_state_dict`, as those of `datasets` do. Loading
processes have a copy each, so each batch brings along where its process stood when it was made.
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
class Placed:
    """A batch, which process made it, and where the data stood after it."""

    batch: Any
    process: int
    state: dict[str, Any]


class ShareOfStream(IterableDataset[Any]):
    """Of every round of batches, one per process, this process's. Each reads the stream by itself, so nobody waits for
    another, and takes its own: nothing comes twice. A round is read whole, so the stream is at the same place in all.
    """

    def __init__(self, stream: Any, share: Share, batch_size: int) -> None:
        self.stream, self.share, self.batch_size = stream, share, batch_size

    def __iter__(self) -> Iterator[Any]:
        samples, size = iter(self.stream), self.batch_size
        while whole := list(islice(samples, size * self.share.world)):
            yield from whole[self.share.rank * size : (self.share.rank + 1) * size]

    def __getattr__(self, name: str) -> Any:
        # Its place, its epoch and whatever else it can be asked.
        if name == "stream":
            raise AttributeError(name)
        return getattr(self.stream, name)


def tells_its_place(loader: Any) -> bool:
    data = getattr(loader, "dataset", None)
    knows = hasattr(data, "state_dict") and hasattr(data, "load_state_dict")
    return isinstance(loader, DataLoader) and isinstance(data, IterableDataset) and knows


class Stream:
    """Keeps the place of a loader over such data."""

    def __init__(self, loader: DataLoader[Any], place: dict[str, Any] | None) -> None:
        self.loader, self.processes = loader, loader.num_workers
        self._states: dict[int, dict[str, Any]] = dict(place["states"]) if place else {}
        self._last = int(place["last"]) if place else -1
        if place and place["processes"] != self.processes:
            raise ValueError(
                f"the checkpoint's place in the data is that of {place['processes']} loading processes, and "
                f"dataloader_num_workers is {self.processes}: give the old number"
            )

    def open(self) -> Iterator[Any]:
        """An iterator from the place on. What is swapped in here is back as it was when it returns."""
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
        """The batch itself, its place noted."""
        if not isinstance(batch, Placed):
            return batch
        self._states[batch.process], self._last = batch.state, batch.process
        return batch.batch

    def place(self) -> dict[str, Any]:
        if not self.processes:
            self._states[0] = self.loader.dataset.state_dict()  # type: ignore[attr-defined]
        return {"processes": self.processes, "states": dict(self._states), "last": self._last}


def _placed(collate: Collator, samples: Sequence[Any]) -> Placed:
    process: Any = get_worker_info()
    return Placed(collate(samples), process.id, process.dataset.state_dict())


def _go_to(
    prepare: Callable[[int], None] | None, states: dict[int, dict[str, Any]], last: int, processes: int, process: int
) -> None:
    """In a loading process. Batches are asked of process 0 first: so it becomes the one whose turn it is."""
    info: Any = get_worker_info()
    own = (process + last + 1) % processes
    object.__setattr__(info, "id", own)  # it is frozen, and nothing else can tell the dataset whose share it reads
    if own in states:
        info.dataset.load_state_dict(states[own])
    if prepare is not None:
        prepare(own)
