"""The other processes: what all must know or decide together goes through here, and nothing else does.

Alone, each of these is what it says for a company of one. Together they speak on the host (gloo), beside the
gradients: a vote does not wait for a GPU.
"""

from __future__ import annotations

import atexit
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from footplate.trainer.launcher import Place
from footplate.trainer.strategies import sockets

T = TypeVar("T")

_ALL_FAILED_SECONDS = 5.0
"""How long one whose training raised waits to see whether it did so everywhere."""
_LAST_WORDS_SECONDS = 5.0
"""How long it then stays for the others to end: a launcher that sees one gone ends them, before they have said why."""


class Alone:
    rank = local_rank = 0
    world = 1
    group: Any = None
    """In which tensors go from device to device, as torch names it."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def everyone(self, value: T) -> list[T]:
        """Each process's, in their order."""
        return [value]

    def first(self, make: Callable[[], T]) -> T:
        """What the main process makes; the others get it. What it raises is raised everywhere."""
        return make()

    def each(self, make: Callable[[], T]) -> list[T]:
        """What each process makes, in their order. What one of them raises is raised everywhere."""
        return [make()]

    def hand(self, data: torch.Tensor, source: int, to: int | None = None) -> None:
        """What one has in these bytes: into those of another, or of all."""

    def any(self, flags: list[bool]) -> list[bool]:
        """Each flag that is up somewhere is up everywhere."""
        return flags

    def most(self, number: int) -> int:
        return number

    def total(self, number: Any) -> Any:
        return number

    def way_of(self, tensor: torch.Tensor) -> Any:
        """The group in which it travels: from device to device, or, of a tensor on the host, beside the gradients."""
        return self.group

    def wait(self) -> None:
        """For all of them to come here."""

    def every(self, size: int) -> Alone:
        """Of groups of so many neighbours, those that have in theirs the place that this process has in its own."""
        return self

    def failed(self, error: BaseException) -> None:
        """Training raised here. Who waits for this process must not wait for ever."""


class Peers(Alone):
    failures = 0
    """That all of them had alike, in this process's life: each is told under its own number."""

    def __init__(self, place: Place, backend: str | None, timeout: timedelta, device: torch.device) -> None:
        self.rank, self.world, self.local_rank = place.rank, place.world, place.local_rank
        self.host = socket.gethostname()
        with sockets.opening():
            if not dist.is_initialized():
                backend = backend or ("gloo" if device.type == "cpu" else f"{device.type}:nccl,cpu:gloo")
                dist.init_process_group(backend, timeout=timeout)
            speaks_on_host = "gloo" in str(dist.get_backend_config())
            self._group: Any = None if speaks_on_host else dist.new_group(backend="gloo", timeout=timeout)
        self._timeout = timeout

    def everyone(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value, group=self._group)
        return found

    def first(self, make: Callable[[], T]) -> T:
        made: list[Any] = [None, None]
        raised: BaseException | None = None
        if self.is_main:
            try:
                made[0] = make()
            except Exception as error:
                raised, made[1] = error, as_told(error)
        dist.broadcast_object_list(made, group_src=0, group=self._group)
        if raised is not None or made[1] is not None:
            raise raised or made[1]
        return made[0]  # type: ignore[no-any-return]

    def each(self, make: Callable[[], T]) -> list[T]:
        made: T | None = None
        raised: Exception | None = None
        try:
            made = make()
        except Exception as error:
            raised = error
        told = self.everyone((made, None if raised is None else as_told(raised)))
        for rank, (_, failed) in enumerate(told):
            if failed is not None:
                # The same one everywhere: who bears it in one process bears it in all.
                raise (raised if raised is not None and rank == self.rank else failed) from None
        return [each for each, _ in told]  # type: ignore[misc]

    def hand(self, data: torch.Tensor, source: int, to: int | None = None) -> None:
        if to is None:
            dist.broadcast(data, src=source, group=self._group)
        elif self.rank == source:
            dist.send(data, dst=to, group=self._group)
        elif self.rank == to:
            dist.recv(data, src=source, group=self._group)

    def any(self, flags: list[bool]) -> list[bool]:
        votes = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group)
        return [bool(each) for each in votes.tolist()]

    def most(self, number: int) -> int:
        found = torch.tensor(number)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
        return int(found)

    def total(self, number: Any) -> Any:
        """Of a number on the host, or of a tensor where it is. A tensor is changed in place."""
        if isinstance(number, torch.Tensor):
            dist.all_reduce(number, group=self.way_of(number))
            return number
        found = torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)
        dist.all_reduce(found, group=self._group)
        return type(number)(found.item())

    def way_of(self, tensor: torch.Tensor) -> Any:
        return self._group if tensor.device.type == "cpu" else self.group

    def wait(self) -> None:
        self.any([False])

    def every(self, size: int) -> Alone:
        return self if size == 1 else Alone() if size == self.world else Circle(self, size, self._timeout)

    def neighbours(self, size: int) -> Any:
        """The group, as torch names it, of so many neighbours that this process is one of."""
        with sockets.opening():
            starts = range(0, self.world, size)
            every = [dist.new_group(list(range(at, at + size)), timeout=self._timeout) for at in starts]
        return every[self.rank // size]

    def failed(self, error: BaseException) -> None:
        """Where all have failed alike they may go on together, with another batch say. Else the lines are cut: who
        waits for this process in the middle of a step is told at once, and told why, instead of after ddp_timeout."""
        if not dist.is_initialized():
            return
        store, key = dist.distributed_c10d._get_default_store(), f"footplate/failure/{Peers.failures}"
        try:
            first = store.compare_set(f"{key}/first", "", str(self.rank)).decode()
            mine = f"{type(error).__name__}: {error}"
            store.set(f"{key}/{self.rank}", mine)
            why = store.get(f"{key}/{first}").decode()
            if why != mine:
                error.add_note(f"process {first} failed before this one, which is {self.rank} of {self.world}: {why}")
            if self._failed_together(store, key):
                Peers.failures += 1
            else:
                sockets.cut()
                # destroy_process_group() would let NCCL first finish what is under way, which nobody answers any more.
                dist.distributed_c10d._abort_process_group()
                atexit.register(self._end, store, key, is_first=first == str(self.rank))
        except Exception as another:  # the store goes with the process that holds it
            error.add_note(f"and the other processes could not be told: {another!r}")

    def _failed_together(self, store: Any, key: str) -> bool:
        """Whoever decides it first decides it for all."""
        everyone, decided = [f"{key}/{rank}" for rank in range(self.world)], f"{key}/decided"
        _within(_ALL_FAILED_SECONDS, lambda: store.check([decided]) or store.check(everyone))
        found = "together" if store.check(everyone) else "apart"
        return bool(store.compare_set(decided, "", found) == b"together")

    def _end(self, store: Any, key: str, *, is_first: bool) -> None:
        """As the process ends, its error printed. The first to fail is the last to go."""
        with suppress(Exception):  # the store may be gone
            store.set(f"{key}/{self.rank}/ended", "")
            if is_first:
                everyone = [f"{key}/{rank}/ended" for rank in range(self.world)]
                _within(_LAST_WORDS_SECONDS, lambda: store.check(everyone))


class Circle(Peers):
    """Some of the processes, who speak among themselves."""

    def __init__(self, of: Peers, size: int, timeout: timedelta) -> None:
        self.rank, self.world, self.local_rank, self.host = of.rank // size, of.world // size, of.local_rank, of.host
        self._timeout = timeout
        circles = [list(range(first, of.world, size)) for first in range(size)]
        speaks_on_host = of._group is None
        with sockets.opening():
            # Each of them is opened by all, and spoken in by its own.
            own = [dist.new_group(each, timeout=timeout) for each in circles]
            hosts = (
                own if speaks_on_host else [dist.new_group(each, timeout=timeout, backend="gloo") for each in circles]
            )
        self.group, self._group = own[of.rank % size], hosts[of.rank % size]


def _within(seconds: float, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not holds():
        time.sleep(0.05)


def as_told(error: BaseException) -> BaseException:
    """An error that another process can be told: the same kind where a text is all that it is made of."""
    try:
        told = type(error)(str(error))
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
    return told


class Hollow(dict[str, Any]):
    """A batch that counts for nothing: others have one more, and a model in pieces needs everybody in every forward."""
