"""Starts and stops the training processes of one attempt on this node, and decides which rank failed first.

    orders, sockets, pipes, the stop byte   ->  warm parent  ->  the ranks
    events, each with its rank              ->  `on_events`

If one rank fails, the others would wait for it for ever. So they are killed, and the first failure is reported.
"""

from __future__ import annotations

import mmap
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from footplate.contract.events import DoneData, Ending, Kind
from footplate.contract.host import launch
from footplate.contract.host.launch import (
    COMMANDS_AT,
    FROM_WARM,
    IGNORES_STOPS_AT,
    STOP_BYTES,
    STORED_AT,
    TERMINATED_AT,
    Kill,
    Order,
    Start,
    Started,
)
from footplate.contract.host.linux import kill_group
from footplate.contract.host.user import User
from footplate.contract.lifecycle import StopMode
from footplate.contract.messages import Command, Stop
from worker.attempt.rank_process import Events, Rank

OTHER_REPORTS_SECONDS = 1.0
"""The time in which the other ranks may still report after one has failed."""
FINISH_SECONDS = 30.0
"""The time in which the other ranks must end after the first rank has finished training and ended."""
TERM_SHARE, KILL_SHARE = 0.8, 0.9
"""The shares of a stop's time after which training gets SIGTERM, and then SIGKILL."""


class Training:
    """All ranks of one attempt on this node."""

    def __init__(self, selector: selectors.BaseSelector, on_events: Callable[[Events], None]) -> None:
        self.ranks: list[Rank] = []
        self.was_cancelled = False
        """True if the attempt was ended before the warm parent had started its ranks."""
        self.last_event_at = time.monotonic()
        """The time of the newest event of any rank. If one rank hangs, all are silent, because they wait for it."""
        self._selector, self._on_events = selector, on_events
        self._warm: socket.socket | None = None
        self._failed: list[Rank] = []
        """The failed ranks, in the order in which they were noticed."""
        self._kill_others_at: float | None = None
        self._is_being_killed = self._runs = False
        self._stop_fd = os.memfd_create("footplate-stop", os.MFD_CLOEXEC)
        os.ftruncate(self._stop_fd, mmap.PAGESIZE)
        self._stop_byte = mmap.mmap(self._stop_fd, mmap.PAGESIZE)
        self._command_bytes = 0

    def start(
        self,
        folder: Path,
        orders: Sequence[Order],
        inherited_socket: socket.socket | None = None,
        user: User | None = None,
        lock: int | None = None,
        libraries: Sequence[str] = (),
    ) -> None:
        """Sends the orders to the warm parent, whose socket is in `folder`. Raises OSError if there is none.

        The first rank gets `inherited_socket`, which is the rendezvous's or a serving session's. The warm parent gets
        `lock`, which reserves the attempt's user, and the `libraries` that the ranks will import.
        """
        warm = launch.connect(folder)
        ranks = [Rank(order.rank, self._selector, self._receive) for order in orders]
        try:
            for rank, order in zip(ranks, orders, strict=True):
                extra_fds = [] if lock is None else [lock]
                extra_fds += [inherited_socket.fileno()] if inherited_socket is not None and rank is ranks[0] else []
                with rank.opened() as (events, stdout, stderr):
                    start = Start(rank=order.rank, user=user, libraries=tuple(libraries))
                    launch.send_start(warm, start, order, events, self._stop_fd, stdout, stderr, *extra_fds)
        except OSError:
            for rank in ranks:
                rank.close()
            warm.close()
            raise
        self.ranks = ranks
        self._selector.register(warm, selectors.EVENT_READ, self._receive_from_warm_parent)
        self._warm = warm

    @property
    def report(self) -> DoneData | None:
        """The outcome that the first rank has reported. It counts for all ranks if none failed."""
        return self.ranks[0].report if self.ranks else None

    @property
    def failed(self) -> Rank | None:
        """The rank that failed first. If several failed with the same error, the one with the lowest number."""
        if not self._failed:
            return None
        first_failed = min(self._failed, key=lambda rank: rank.is_follow_up)
        ranks_alike = [rank for rank in self._failed if _same_end(rank, first_failed) and not rank.is_follow_up]
        return min(ranks_alike, key=lambda rank: rank.number, default=first_failed)

    @property
    def has_begun(self) -> bool:
        """True if the warm parent has received the orders of all ranks."""
        return bool(self.ranks)

    @property
    def has_started(self) -> bool:
        """True if every rank has or had a process."""
        return bool(self.ranks) and all(rank.pid is not None or rank.exit is not None for rank in self.ranks)

    @property
    def has_exited(self) -> bool:
        """True if the warm parent reported the exit of every rank."""
        return bool(self.ranks) and all(rank.exit is not None for rank in self.ranks)

    @property
    def has_warm_parent(self) -> bool:
        """True if the warm parent is alive, which reports the exits of ranks."""
        return self._warm is not None

    @property
    def is_gone(self) -> bool:
        """True if all ranks and their children have ended.

        The warm parent reports that. If it has died, the ranks' closed sockets and pipes show it.
        """
        if self._warm is not None:
            return self.has_exited
        return all(rank.is_gone for rank in self.ranks)

    @property
    def is_read_out(self) -> bool:
        """True if everything that the ranks sent has been read."""
        return all(rank.is_read_out for rank in self.ranks)

    def request_stop(self, mode: StopMode) -> None:
        """Writes the stop byte, in memory that the ranks share and read after every step."""
        self._stop_byte[0] = STOP_BYTES[mode]

    @property
    def reads_stops(self) -> bool:
        """False while the ranks run a script in which nothing reads the stop byte."""
        return self._stop_byte[IGNORES_STOPS_AT] == 0

    def send_stored_step(self, step: int) -> None:
        """Reports the step of the newest checkpoint in SQL to training, which may then delete older checkpoints."""
        stored_step = int.from_bytes(self._stop_byte[STORED_AT], "little")
        self._stop_byte[STORED_AT] = max(step, stored_step).to_bytes(8, "little")

    def send_command(self, command: Command) -> None:
        """Sends a command to the training loop. Its length is written last, so that no partial line is read."""
        line = command.model_dump_json().encode() + b"\n"
        os.pwrite(self._stop_fd, line, mmap.PAGESIZE + self._command_bytes)
        self._command_bytes += len(line)
        self._stop_byte[COMMANDS_AT] = self._command_bytes.to_bytes(8, "little")

    def check_ranks(self) -> None:
        """Kills the other ranks a second after one has failed. In that second they may report their own errors."""
        for rank in self.ranks:
            self._check_rank(rank)
        if self._kill_others_at is not None and time.monotonic() > self._kill_others_at:
            self._kill_others_at = None
            self.signal(signal.SIGKILL)

    def send_held_steps(self, steps: Sequence[int]) -> None:
        """Sends training the steps of checkpoints that it must not delete, because other jobs start from them."""
        launch.hold_steps(self._stop_byte, steps)

    def signal(self, number: signal.Signals) -> None:
        """Signals all ranks through the warm parent, because only a parent knows that a child's pid is not reused."""
        # From now on a rank's failure is a result of the signal.
        self._is_being_killed = True
        if number is signal.SIGTERM:
            self._stop_byte[TERMINATED_AT] = 1
        if self.has_exited:
            return
        if self._warm is None:
            for rank in self.ranks:
                if rank.pid is not None and rank.exit is None:
                    kill_group(rank.pid, number)
        elif not self.has_started and number is signal.SIGKILL:
            # After the connection is closed, the warm parent starts no more ranks, and kills the started ones.
            self.was_cancelled = True
            self.disconnect()
        else:
            with suppress(OSError):
                self._warm.send(Kill(signal=number).model_dump_json().encode())

    def disconnect(self) -> None:
        """Closes the connection to the warm parent, which then kills all ranks."""
        if self._warm is not None:
            self._selector.unregister(self._warm)
            self._warm.close()
            self._warm = None

    def close(self) -> None:
        self.disconnect()
        for rank in self.ranks:
            rank.close()
        self._stop_byte.close()
        os.close(self._stop_fd)

    def _receive_from_warm_parent(self) -> None:
        if self._warm is None:
            return
        try:
            packet = self._warm.recv(4096)
        except OSError:
            packet = b""
        if not packet:
            # The warm parent has died, and the ranks die with it. Children that left a rank's group may live on.
            self.disconnect()
            return
        message = FROM_WARM.validate_json(packet)
        rank = next(rank for rank in self.ranks if rank.number == message.rank)
        self.last_event_at = time.monotonic()
        if isinstance(message, Started):
            rank.pid = message.pid
        else:
            rank.exit, rank.exited_at = message, time.monotonic()

    def _receive(self, rank: Rank, events: Events) -> None:
        self.last_event_at = time.monotonic()
        if rank.report is not None:
            self._check_rank(rank)
        self._on_events([joined_event for event in events if (joined_event := self._joined(rank, event)) is not None])

    def _joined(self, rank: Rank, event: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the event, or None to drop it. Each rank reports that it runs, but only the last report is kept."""
        if event["kind"] != Kind.STATE:
            return event
        rank.runs, were_running = True, self._runs
        self._runs = all(rank.runs for rank in self.ranks)
        return {**event, "rank": 0} if self._runs and not were_running else None

    def _check_rank(self, rank: Rank) -> None:
        """Records a failure of the rank. If the rank has ended, sets the time at which the other ranks are killed."""
        if self._is_being_killed:
            return
        is_finished = self.report is not None and self.report.ending is Ending.FINISHED
        if rank.failed and rank not in self._failed and not is_finished:
            self._failed.append(rank)
        if rank.exit is None or self._kill_others_at is not None:
            return
        if rank in self._failed:
            self._kill_others_at = time.monotonic() + OTHER_REPORTS_SECONDS
        elif is_finished and rank is self.ranks[0]:
            self._kill_others_at = time.monotonic() + FINISH_SECONDS


class Stopping:
    """Stops training: first by the stop byte, then by SIGTERM, then by SIGKILL.

    A script in which nothing reads the stop byte gets SIGTERM at once, and has more time to save.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self.stop: Stop | None = None
        """The stop that training is following now."""
        self._until = 0.0
        self._escalations: list[tuple[float, signal.Signals]] = []

    def follow(self, stop: Stop) -> None:
        """Starts a stop. The same stop comes again with every reply, and changes nothing.

        A stop with another cause or mode replaces the current one, but never ends later.
        """
        old_stop, is_of_worker = self.stop, stop.because in ("drain", "time_limit")
        if old_stop is not None and (is_of_worker or (old_stop.because, old_stop.mode) == (stop.because, stop.mode)):
            return
        now = time.monotonic()
        until = now + stop.within_seconds
        self.stop, self._until = stop, until if old_stop is None else min(until, self._until)
        if stop.mode is StopMode.KILL:
            self._escalations = [(now, signal.SIGKILL)]
            return
        self._training.request_stop(stop.mode)
        seconds = self._until - now
        term_share = TERM_SHARE if self._training.reads_stops else 0.0
        self._escalations = [(now + seconds * term_share, signal.SIGTERM), (now + seconds * KILL_SHARE, signal.SIGKILL)]

    def due_in(self, longest: float) -> float:
        """Returns the seconds until the next signal, at most `longest`."""
        return min(longest, max(0.0, self._escalations[0][0] - time.monotonic())) if self._escalations else longest

    def send_due_signals(self, now: float) -> None:
        while self._escalations and now >= self._escalations[0][0]:
            self._training.signal(self._escalations.pop(0)[1])

    @property
    def leaves_no_time(self) -> bool:
        """True if there is no time left to upload training's files."""
        # After a failure on another node, this node still uploads the files of its script.
        if self.stop is None or self.stop.because == "peer":
            return False
        return self.stop.mode is StopMode.KILL or time.monotonic() > self._until


def _same_end(rank: Rank, other_rank: Rank) -> bool:
    """Returns True if both ranks reported the same error."""
    if rank.report is None or other_rank.report is None or rank.report.error is None or other_rank.report.error is None:
        return rank is other_rank
    return rank.report.error.code == other_rank.report.error.code
