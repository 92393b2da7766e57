"""Owns one attempt, from its grant until SQL has its last event. Imports no torch; waits for nobody but in `select`.

    launch      the warm parent forks training; its socket, pipes and exit come to this thread
    watch       what it says goes into the journal; what stops it: control, a drain, its limits
    conclude    why it ended becomes `done`
    hand over   the link sends what is left, until it is acknowledged

A thread of the link's own talks to Redis. Whatever happens to Redis, training goes on.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import redis
from pydantic import ValidationError

from contract.errors import AttemptError
from contract.events import DoneData, Ending, Kind, now_text
from contract.lifecycle import Reason, StopMode
from contract.messages import AttemptReply, Grant, Stop
from worker import launch, outcome
from worker.control import Link
from worker.journal import Header, Journal, JournalFull
from worker.launch import FROM_WARM, Exited, Kill, Order, Started
from worker.lines import Lines
from worker.linux import kill_group
from worker.node import Places
from worker.outcome import Verdict
from worker.settings import WorkerSettings
from worker.usage import Usage

log = logging.getLogger("footplate.worker")

TICK_SECONDS = 0.5
"""How long the loop sleeps at most: limits and the drain notice are looked at so often."""
SYNC_SECONDS = 1.0
SYSTEM_SECONDS = 10.0
READ_BYTES = 256 * 1024
MAX_LINE_BYTES = 1024 * 1024
BUFFER_BYTES = 4 * 1024 * 1024
WARM_SECONDS = 120.0
"""How long a launch waits for a warm parent that is being restarted."""
LAST_WORDS_SECONDS = 2.0
FROM_TRAINING = frozenset({Kind.STATE, Kind.LOG, Kind.EVAL, Kind.CHECKPOINT, Kind.PROGRESS, Kind.NOTE, Kind.SYSTEM})
STOP_BYTES = {StopMode.CHECKPOINT: 1, StopMode.GRACEFUL: 2}
"""The same as training's: emit.py."""


class Supervisor:
    """One attempt."""

    def __init__(self, settings: WorkerSettings, places: Places, grant: Grant, client: redis.Redis) -> None:
        self._settings, self._places, self._grant = settings, places, grant
        self._started = time.monotonic()
        self._verdict: Verdict | None = None
        """Why we ended it, where it was not told to stop."""
        self._journal = self._new_journal()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._link = Link(client, grant, self._journal, self._wake)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, self._hear_control)
        self._stop_byte_fd, self._stop_byte = _stop_byte()
        self._warm: socket.socket | None = None
        self._pid: int | None = None
        self._exit: Exited | None = None
        self._lines = {name: Lines(name) for name in ("stdout", "stderr")}
        self._open_streams = 0
        self._unread = b""
        self._told: DoneData | None = None
        """What training said of its own end."""
        self._stop: Stop | None = None
        self._stop_at = 0.0
        self._escalations: list[tuple[float, signal.Signals]] = []
        self._is_superseded = self._is_closed = self._is_running = self._had_checkpoint = False
        self._is_delivered = False
        self._oom_kills = outcome.oom_kill_count()
        resources = grant.spec.get("resources") or {}
        self._stall_seconds = float(resources.get("stall_limit") or 600.0)
        self._time_limit: float | None = resources.get("time_limit")
        self._heard_at = self._turned_at = self._synced_at = time.monotonic()
        self._system_at = self._heard_at + SYSTEM_SECONDS
        self._usage: Usage | None = None

    def run(self) -> None:
        self._link.start()
        try:
            if self._launch():
                self._watch()
            if not self._is_superseded:
                self._conclude()
                self._hand_over()
        finally:
            self._close()

    # Launch

    def _new_journal(self) -> Journal:
        grant = self._grant
        header = Header(grant.job, grant.attempt, grant.fence, grant.claim, grant.source)
        try:
            return Journal.create(self._places.journals, header, self._settings.journal_max_mb)
        except OSError as error:
            full = JournalFull(f"the node's disk takes no journal: {error.strerror}")
            self._verdict = outcome.of_ours(full, Reason.JOURNAL_FULL)
            return Journal.in_memory(header, self._settings.journal_max_mb)

    def _launch(self) -> bool:
        """Whether training was started. It is not where a stop comes first, or the warm parent never does."""
        while not self._must_end():
            try:
                self._warm = launch.connect(self._places.run)
            except OSError:
                # It is being started again.
                self._turn(0.1)
                continue
            self._start(self._warm)
            return True
        return False

    def _start(self, warm: socket.socket) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        ours.setblocking(False)
        pipes = {name: os.pipe2(os.O_CLOEXEC) for name in self._lines}
        self._watch_stream(ours, partial(self._read_events, ours))
        for name, (reading, _) in pipes.items():
            os.set_blocking(reading, False)
            self._watch_stream(reading, partial(self._read_lines, reading, self._lines[name]))
        self._selector.register(warm, selectors.EVENT_READ, self._hear_warm)
        ends = [writing for _, writing in pipes.values()]
        launch.send_start(warm, self._order(), theirs.fileno(), self._stop_byte_fd, *ends)
        theirs.close()
        for end in ends:
            os.close(end)

    def _order(self) -> Order:
        grant, settings = self._grant, self._settings
        slots = settings.slot_count(len(grant.gpus))
        return Order(
            job=grant.job,
            attempt=grant.attempt,
            fence=grant.fence,
            claim=grant.claim,
            spec=grant.spec,
            gpus=grant.gpus,
            checkpoints=grant.checkpoints,
            artifacts=settings.artifacts_path,
            data=settings.data_path,
            models=settings.models_path,
            threads=int(os.environ.get("OMP_NUM_THREADS") or max(1, (os.cpu_count() or 1) // slots)),
        )

    # Watch

    def _watch(self) -> None:
        while not self._is_gone():
            self._turn()
            if self._is_superseded or self._warm is None:
                self._kill()
        # The dead write no more: what is in the pipes is all there is, unless somebody ran away with an end.
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while self._open_streams and time.monotonic() < deadline:
            self._turn(0.1)

    def _is_gone(self) -> bool:
        """Training and everything it forked. Without a warm parent nobody reports that; its streams end."""
        if self._warm is None:
            return self._open_streams == 0 or self._pid is None
        return self._exit is not None

    def _turn(self, longest: float = TICK_SECONDS) -> None:
        """One turn of the loop: what came, then what is due."""
        for key, _ in self._selector.select(min(longest, self._due_in())):
            key.data()
        now = time.monotonic()
        if now - self._turned_at > TICK_SECONDS + 2.0:
            # We were frozen, not training.
            self._heard_at = now
        self._turned_at = now
        self._check_limits(now)
        if now - self._synced_at >= SYNC_SECONDS:
            self._synced_at = now
            self._keep_journal()

    def _keep_journal(self) -> None:
        try:
            self._journal.sync()
            self._journal.forget(self._link.acknowledged)
        except OSError as error:
            full = JournalFull(f"the node's disk does not take the attempt's events: {error.strerror}")
            self._end_with(outcome.of_ours(full, Reason.JOURNAL_FULL))

    def _due_in(self) -> float:
        now = time.monotonic()
        return max(0.0, self._escalations[0][0] - now) if self._escalations else TICK_SECONDS

    def _check_limits(self, now: float) -> None:
        grant = self._grant
        if self._places.is_draining():
            within = self._settings.drain_seconds
            self._obey(Stop(because="drain", mode=StopMode.CHECKPOINT, within_seconds=within))
        if grant.time_left_seconds is not None and now - self._started > grant.time_left_seconds:
            self._obey(Stop(because="time_limit", mode=StopMode.CHECKPOINT, within_seconds=60.0))
        while self._escalations and now >= self._escalations[0][0]:
            self._signal(self._escalations.pop(0)[1])
        if self._verdict is None and self._pid is not None and now - self._heard_at > self._stall_seconds:
            self._end_with(outcome.stalled(self._stall_seconds, self._tail()))
        if self._verdict is None and self._pid is None and now - self._started > WARM_SECONDS:
            self._end_with(self._crashed("this node's warm parent does not start anything"))
            self._lose_warm()
        if self._pid is not None and now >= self._system_at:
            self._system_at = now + SYSTEM_SECONDS
            self._usage = self._usage or Usage(self._pid, grant.gpus)
            self._write([self._event(Kind.SYSTEM, self._usage.look())])

    def _obey(self, stop: Stop) -> None:
        """The same stop comes with every beat. Another one of control's counts anew, but never later."""
        known = self._stop
        if known is not None and (
            (known.because, known.mode) == (stop.because, stop.mode) or stop.because in ("drain", "time_limit")
        ):
            return
        now = time.monotonic()
        until = now + stop.within_seconds
        if self._stop is not None:
            until = min(until, self._stop_at)
        self._stop, self._stop_at = stop, until
        if stop.mode is StopMode.KILL:
            self._escalations = [(now, signal.SIGKILL)]
            return
        self._stop_byte[0] = STOP_BYTES[stop.mode]
        self._escalations = [
            (now + (until - now) * 0.8, signal.SIGTERM),
            (now + (until - now) * 0.9, signal.SIGKILL),
        ]

    def _end_with(self, verdict: Verdict) -> None:
        if self._verdict is None:
            self._verdict = verdict
        self._kill()

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Through the warm parent: only who waits for a process knows that its number is still its own."""
        if self._warm is not None and self._exit is None:
            with suppress(OSError):
                self._warm.send(Kill(signal=number).model_dump_json().encode())
        elif self._pid is not None and self._exit is None:
            kill_group(self._pid, number)

    # What comes

    def _watch_stream(self, stream: Any, read: Callable[[], None]) -> None:
        self._selector.register(stream, selectors.EVENT_READ, read)
        self._open_streams += 1

    def _end_stream(self, stream: Any) -> None:
        self._selector.unregister(stream)
        self._open_streams -= 1
        os.close(stream) if isinstance(stream, int) else stream.close()

    def _hear_warm(self) -> None:
        warm = self._warm
        if warm is None:
            return
        try:
            packet = warm.recv(4096)
        except OSError:
            packet = b""
        if not packet:
            # It dies with everything it forked, but for what that had forked in turn.
            self._lose_warm()
            if self._exit is None:
                self._end_with(self._crashed("this node's warm parent died, and training with it"))
            return
        message = FROM_WARM.validate_json(packet)
        if isinstance(message, Started):
            self._pid = message.pid
            self._heard_at = time.monotonic()
        else:
            self._exit = message

    def _lose_warm(self) -> None:
        if self._warm is not None:
            self._selector.unregister(self._warm)
            self._warm.close()
            self._warm = None

    def _read_events(self, stream: socket.socket) -> None:
        """Everything that is there, in bites, so that one chatty training does not keep the limits waiting."""
        for _ in range(16):
            try:
                chunk = stream.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._end_stream(stream)
                return
            self._heard_at = time.monotonic()
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            if len(self._unread) > MAX_LINE_BYTES:
                self._unread = b""
            self._write([event for line in lines if (event := self._understand(line)) is not None])

    def _read_lines(self, fd: int, lines: Lines) -> None:
        for _ in range(16):
            try:
                chunk = os.read(fd, READ_BYTES)
            except BlockingIOError:
                return
            self._heard_at = time.monotonic()
            self._write(lines.take(chunk))
            if not chunk:
                self._end_stream(fd)
                return

    def _understand(self, line: bytes) -> dict[str, Any] | None:
        """An event, if it is one: user code shares that socket and may write anything."""
        try:
            said = json.loads(line)
            kind, data = said["kind"], said["data"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if not isinstance(data, dict):
            return None
        if kind == "outcome":
            with suppress(ValidationError):
                self._told = DoneData.model_validate(data)
        if "forked_ms" in data:
            log.info("%s attempt %s: forked in %s ms", self._grant.job, self._grant.attempt, data["forked_ms"])
        if kind not in FROM_TRAINING:
            return None
        self._notice(kind, data)
        step, epoch, at = said.get("step"), said.get("epoch"), said.get("at")
        return {
            "kind": Kind(kind),
            "at": at if isinstance(at, str) and len(at) < 40 else now_text(),
            "step": step if isinstance(step, int) else None,
            "epoch": epoch if isinstance(epoch, int | float) else None,
            "data": data,
        }

    def _notice(self, kind: str, data: dict[str, Any]) -> None:
        if kind == Kind.CHECKPOINT and data.get("status") == "committed":
            self._had_checkpoint = True
        if kind == Kind.STATE and not self._is_running:
            self._is_running = True
            self._link.poke(beat=True)

    def _hear_control(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._link.replies.empty():
            self._take_reply(self._link.replies.get())

    def _take_reply(self, reply: AttemptReply) -> None:
        self._is_closed = self._is_closed or reply.closed
        if reply.superseded or (reply.closed and not self._journal.is_done):
            self._is_superseded = True
        elif reply.stop is not None:
            self._obey(reply.stop)

    def _write(self, events: list[dict[str, Any]]) -> None:
        if not events or self._is_superseded:
            return
        try:
            self._journal.append(events)
        except JournalFull as error:
            self._end_with(outcome.of_ours(error, Reason.JOURNAL_FULL))
            return
        self._link.poke()

    def _event(self, kind: Kind, data: dict[str, Any]) -> dict[str, Any]:
        return {"kind": kind, "at": now_text(), "data": data}

    # Conclude

    def _conclude(self) -> None:
        done = self._how_it_ended()
        done = done.model_copy(
            update={
                "running_s": round(time.monotonic() - self._started, 3),
                "had_checkpoint": self._had_checkpoint,
            }
        )
        self._journal.append([self._event(Kind.DONE, done.model_dump(mode="json"))], even_if_full=True)
        log.info("%s attempt %s: %s (%s)", self._grant.job, self._grant.attempt, done.ending, done.reason)

    def _how_it_ended(self) -> DoneData:
        """Finished wins over a stop that came too late; a verdict of ours over what training made of being killed."""
        told, stop = self._told, self._stop
        if told is not None and told.ending is Ending.FINISHED:
            return told
        if self._verdict is not None:
            return self._failed(self._verdict)
        if stop is not None and (told is None or told.ending is Ending.STOPPED):
            result = told.result if told else {}
            if stop.because == "time_limit":
                return self._failed(outcome.time_limit(self._time_limit), result)
            return DoneData(ending=Ending.STOPPED, reason=Reason(stop.because), stop=stop.because, result=result)
        if told is not None and told.error is not None:
            return told
        assert self._exit is not None
        kills = outcome.oom_kill_count() - self._oom_kills
        rank, peak = self._exit.rank, self._exit.peak_rss_mb
        return self._failed(
            outcome.of_exit(self._exit.code, rank=rank, peak_rss_mb=peak, oom_kills=kills, output=self._tail())
        )

    def _failed(self, verdict: Verdict, result: dict[str, Any] | None = None) -> DoneData:
        return DoneData(ending=Ending.FAILED, reason=verdict.reason, error=verdict.error, result=result or {})

    def _crashed(self, message: str) -> Verdict:
        return outcome.of_ours(AttemptError(message), Reason.CRASHED)

    def _tail(self) -> str:
        lines = [*self._lines["stdout"].tail, *self._lines["stderr"].tail]
        return "\n".join(lines[-outcome.OUTPUT_LINES :])[-outcome.TRACEBACK_CHARS :]

    def _must_end(self) -> bool:
        return self._is_superseded or self._stop is not None or self._verdict is not None

    # Hand over

    def _hand_over(self) -> None:
        """Lives until everything is acknowledged; when the node goes away first, its next start sends the rest."""
        self._link.is_hurried = True
        self._link.poke(beat=True)
        deadline: float | None = None
        while self._link.acknowledged < self._journal.last and not self._is_closed and not self._is_superseded:
            for key, _ in self._selector.select(TICK_SECONDS):
                key.data()
            if deadline is None and self._places.is_draining():
                deadline = max(time.monotonic() + 2.0, self._started + self._settings.drain_seconds)
            if deadline is not None and time.monotonic() > deadline:
                return
        self._is_delivered = True

    def _close(self) -> None:
        self._link.close()
        if self._is_delivered or self._is_superseded:
            self._journal.delete()
        else:
            self._journal.close()
        if self._warm is not None:
            self._warm.close()
        self._selector.close()
        self._stop_byte.close()
        os.close(self._stop_byte_fd)
        if not self._link.is_alive():
            os.close(self._wake)


def _stop_byte() -> tuple[int, mmap.mmap]:
    fd = os.memfd_create("footplate-stop", os.MFD_CLOEXEC)
    os.ftruncate(fd, mmap.PAGESIZE)
    return fd, mmap.mmap(fd, mmap.PAGESIZE)
