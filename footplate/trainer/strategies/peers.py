"""Communication between the processes of a run, except for the exchange of gradients.

`OneProcess` has the same interface for a single process. `Peers` communicates on the host (gloo), so that a message
does not wait for the GPU. `gather_values` sends the tensors of an evaluation from device to device.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from footplate.trainer.launcher import Place
from footplate.trainer.strategies import sockets
from footplate.trainer.strategies.device_copy import map_tensors, tensors_in

T = TypeVar("T")

_ALL_FAILED_SECONDS = 5.0
"""The time that a process whose training raised waits to see whether all other processes failed as well."""
_EXIT_WAIT_SECONDS = 5.0
"""The time that the first failed process then waits for the others to exit. Without this wait, a launcher that sees
one process gone kills the others before they have printed their errors."""


class OneProcess:
    """The communication interface for a single process: every operation is local."""

    rank = local_rank = 0
    world = 1
    group: Any = None
    """The process group, as torch names it, for tensors that travel from device to device."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_gather(self, value: T) -> list[T]:
        """Returns the values of all processes, in the order of their ranks."""
        return [value]

    def from_main(self, make: Callable[[], T]) -> T:
        """Runs `make` on the main process and returns its result to all. An error is raised in all processes."""
        return make()

    def gather_results(self, make: Callable[[], T]) -> list[T]:
        """Runs `make` on every process and returns all results by rank. An error of one is raised in all."""
        return [make()]

    def transfer(self, data: Tensor, source: int, to: int | None = None) -> None:
        """Copies bytes from the process `source` into `data` of the process `to`, or of all processes."""

    def any(self, flags: list[bool]) -> list[bool]:
        """Returns each flag as true if it is true in any process."""
        return flags

    def total(self, number: Any) -> Any:
        return number

    def group_of(self, tensor: Tensor) -> Any:
        """Returns the process group for this tensor: the device's group, or the host's group for a CPU tensor."""
        return self.group

    def barrier(self) -> None:
        """Waits until all processes have called this method."""

    def with_same_index(self, size: int) -> OneProcess:
        """Returns the ranks that have the same index as this one in every group of `size` consecutive ranks."""
        return self

    def report_failure(self, error: BaseException) -> None:
        """Reports to the other processes that training raised in this process, so that they do not wait for it."""


class Peers(OneProcess):
    """Communication among several processes, over torch.distributed."""

    failures = 0
    """The number of times that all processes have failed together. Each failure has keys of its own in torch's store,
    which contain this number."""

    def __init__(self, place: Place, backend: str | None, timeout: timedelta, device: torch.device) -> None:
        self.rank, self.world, self.local_rank = place.rank, place.world, place.local_rank
        with sockets.opening():
            if not dist.is_initialized():
                backend = backend or ("gloo" if device.type == "cpu" else f"{device.type}:nccl,cpu:gloo")
                dist.init_process_group(backend, timeout=timeout)
            has_gloo = "gloo" in str(dist.get_backend_config())
            self._group: Any = None if has_gloo else dist.new_group(backend="gloo", timeout=timeout)
        self._timeout = timeout

    def all_gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._group)
        return values

    def from_main(self, make: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        own_error: BaseException | None = None
        if self.is_main:
            try:
                outcome[0] = make()
            except Exception as error:
                own_error, outcome[1] = error, picklable(error)
        dist.broadcast_object_list(outcome, group_src=0, group=self._group)
        if own_error is not None or outcome[1] is not None:
            raise own_error or outcome[1]
        return outcome[0]  # type: ignore[no-any-return]

    def gather_results(self, make: Callable[[], T]) -> list[T]:
        result: T | None = None
        own_error: Exception | None = None
        try:
            result = make()
        except Exception as error:
            own_error = error
        outcomes = self.all_gather((result, None if own_error is None else picklable(own_error)))
        for rank, (_, failure) in enumerate(outcomes):
            if failure is not None:
                # Raise the same error everywhere: if one process catches it, all do.
                raise (own_error if own_error is not None and rank == self.rank else failure) from None
        return [result for result, _ in outcomes]  # type: ignore[misc]

    def transfer(self, data: Tensor, source: int, to: int | None = None) -> None:
        if to is None:
            dist.broadcast(data, src=source, group=self._group)
        elif self.rank == source:
            dist.send(data, dst=to, group=self._group)
        elif self.rank == to:
            dist.recv(data, src=source, group=self._group)

    def any(self, flags: list[bool]) -> list[bool]:
        votes = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group)
        return [bool(vote) for vote in votes.tolist()]

    def total(self, number: Any) -> Any:
        """Returns the sum of a number on the host, or sums a tensor in place on its device."""
        if isinstance(number, Tensor):
            dist.all_reduce(number, group=self.group_of(number))
            return number
        total = torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)
        dist.all_reduce(total, group=self._group)
        return type(number)(total.item())

    def group_of(self, tensor: Tensor) -> Any:
        return self._group if tensor.device.type == "cpu" else self.group

    def barrier(self) -> None:
        self.any([False])

    def with_same_index(self, size: int) -> OneProcess:
        return self if size == 1 else OneProcess() if size == self.world else Subgroup(self, size, self._timeout)

    def consecutive_group(self, size: int) -> Any:
        """Returns torch's process group of the `size` consecutive ranks that include this one."""
        with sockets.opening():
            group, _ = dist.new_subgroups(size, timeout=self._timeout)  # type: ignore[no-untyped-call]
        return group

    def report_failure(self, error: BaseException) -> None:
        """Reports the error to the other processes, and closes the connections unless all have failed alike.

        If all failed alike, they may continue together, for example with a smaller batch. Otherwise a process that is
        waiting for this process in a step fails at once with the reason, and not only after ddp_timeout.
        """
        if not dist.is_initialized():
            return
        store, key = dist.distributed_c10d._get_default_store(), f"footplate/failure/{Peers.failures}"
        try:
            first_rank = store.compare_set(f"{key}/first", "", str(self.rank)).decode()
            own_error = f"{type(error).__name__}: {error}"
            store.set(f"{key}/{self.rank}", own_error)
            why = store.get(f"{key}/{first_rank}").decode()
            if why != own_error:
                place = f"which is {self.rank} of {self.world}"
                error.add_note(f"process {first_rank} failed before this one, {place}: {why}")
            if self._failed_together(store, key):
                Peers.failures += 1
            else:
                sockets.cut()
                # destroy_process_group() would let NCCL wait for pending operations that no process answers.
                dist.distributed_c10d._abort_process_group()
                atexit.register(self._end, store, key, is_first=first_rank == str(self.rank))
        except Exception as another:  # torch's store is gone if the process that hosts it has ended
            error.add_note(f"and the other processes could not be informed: {another!r}")

    def _failed_together(self, store: Any, key: str) -> bool:
        """Returns True if all processes failed. The first process to finish waiting stores this answer for all."""
        keys, decided = [f"{key}/{rank}" for rank in range(self.world)], f"{key}/decided"
        _within(_ALL_FAILED_SECONDS, lambda: store.check([decided]) or store.check(keys))
        verdict = "together" if store.check(keys) else "apart"
        return bool(store.compare_set(decided, "", verdict) == b"together")

    def _end(self, store: Any, key: str, *, is_first: bool) -> None:
        """Runs at exit, after the error was printed. The first process to fail exits last."""
        with suppress(Exception):  # the process that hosts torch's store may have ended
            store.set(f"{key}/{self.rank}/ended", "")
            if is_first:
                keys = [f"{key}/{rank}/ended" for rank in range(self.world)]
                _within(_EXIT_WAIT_SECONDS, lambda: store.check(keys))


class Subgroup(Peers):
    """Communication among every `size`-th process, beginning with a rank below `size`."""

    def __init__(self, of: Peers, size: int, timeout: timedelta) -> None:
        self.rank, self.world, self.local_rank = of.rank // size, of.world // size, of.local_rank
        self._timeout = timeout
        ranks_of_groups = [list(range(first_rank, of.world, size)) for first_rank in range(size)]
        with sockets.opening():
            make_groups: Any = dist.new_subgroups_by_enumeration
            self.group, _ = make_groups(ranks_of_groups, timeout=timeout)
            self._group = self.group
            if of._group is not None:
                self._group, _ = make_groups(ranks_of_groups, timeout=timeout, backend="gloo")


def _within(seconds: float, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not condition():
        time.sleep(0.05)


def picklable(error: BaseException) -> BaseException:
    """Returns a copy of the error that can be pickled: a RuntimeError if the error's class needs more than a text."""
    try:
        copy = type(error)(str(error))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    return copy


class PaddingBatch(dict[str, Any]):
    """A repeated batch whose loss and outputs are not counted.

    A process without further batches uses it in forward, because a sharded model needs every process in every forward.
    """


def gather_values(value: Any, peers: OneProcess, *, counts: bool, objects: bool) -> list[Any]:
    """Returns the values of all processes by rank, without those of processes that pass `counts` as False.

    All values have the same structure. Tensors are sent from device to device, and may differ in shape. With
    `objects`, values of any type are pickled.
    """
    if objects:
        values = peers.all_gather((counts, map_tensors(value, lambda leaf: leaf.cpu())))
        return [value for is_counted, value in values if is_counted]
    leaves = tensors_in(value)
    layouts = peers.all_gather((counts, [tuple(leaf.shape) for leaf in leaves]))
    columns = [gather_tensor(leaf, [shapes[at] for _, shapes in layouts], peers) for at, leaf in enumerate(leaves)]
    result = []
    for rank, (is_counted, _) in enumerate(layouts):
        own_leaves = iter([column[rank] for column in columns])
        if is_counted:
            result.append(map_tensors(value, lambda leaf, own_leaves=own_leaves: next(own_leaves)))  # type: ignore[misc]
    return result


def gather_tensor(leaf: Tensor, shapes: list[tuple[int, ...]], peers: OneProcess) -> list[Tensor]:
    """Gathers tensors that differ in shape: each is padded to the largest sizes, and cut back after the collective."""
    box = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    padded = leaf.detach()
    if tuple(leaf.shape) != box:
        padded = leaf.new_zeros(box)
        padded[tuple(slice(size) for size in leaf.shape)] = leaf
    received = [torch.empty_like(padded, memory_format=torch.contiguous_format) for _ in shapes]
    dist.all_gather(received, padded.contiguous(), group=peers.group_of(padded))
    return [tensor[tuple(slice(size) for size in shape)] for tensor, shape in zip(received, shapes, strict=True)]


def require_tensors(value: Any) -> None:
    """Raises TypeError for predictions that are neither tensors nor None, because only tensors are sent unpickled."""
    if value is None or isinstance(value, Tensor):
        return
    if isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            require_tensors(item)
        return
    raise TypeError(
        f"a prediction holds a {type(value).__name__}, and processes send each other only tensors: set "
        "eval_use_gather_object=True, which pickles predictions"
    )
