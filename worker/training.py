"""A training process as its supervisor sees it: started through the warm parent, heard, stopped, and how it ended.

order, socket, stop byte, two pipes  ->  warm parent  ->  the process
the process's events and lines       ->  `on_events`, checked: user code shares that socket and may write anything
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
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from contract.events import DoneData, Kind, now_text
from contract.lifecycle import StopMode
from contract.messages import Deed
from worker import launch, outcome
from worker.launch import FROM_WARM, NEWS_AT, STOP_BYTES, STORED_AT, Exited, Kill, Order, Started
from worker.lines import Lines
from worker.linux import kill_group

log = logging.getLogger("footplate.worker")

READ_BYTES = 256 * 1024
BITES = 16
"""Reads in a row from one stream: a chatty training must not keep its limits waiting."""
MAX_LINE_BYTES = 1024 * 1024
BUFFER_BYTES = 4 * 1024 * 1024
TOLD_BY_TRAINING = frozenset({Kind.STATE, Kind.LOG, Kind.EVAL, Kind.CHECKPOINT, Kind.PROGRESS, Kind.DO, Kind.NOTE})

Events = list[dict[str, Any]]


class Training:
    """One rank. Its descriptors are in the supervisor's selector, with what to call as data."""

    def __init__(self, selector: selectors.BaseSelector, on_events: Callable[[Events], None]) -> None:
        self.pid: int | None = None
        self.exit: Exited | None = None
        self.was_let_go = False
        """Ended before the warm parent had started it: nobody died."""
        self.told: DoneData | None = None
        """What it said of its own end."""
        self.heard_at = time.monotonic()
        self._selector, self._on_events = selector, on_events
        self._warm: socket.socket | None = None
        self._streams: dict[int, Any] = {}
        self._unread = b""
        self._lines = {name: Lines(name) for name in ("stdout", "stderr")}
        self._stop_fd = os.memfd_create("footplate-stop", os.MFD_CLOEXEC)
        os.ftruncate(self._stop_fd, mmap.PAGESIZE)
        self._stop_byte = mmap.mmap(self._stop_fd, mmap.PAGESIZE)
        self._deed_bytes = 0

    def start(self, folder: Path, order: Order) -> None:
        """Asks the warm parent for it; OSError while there is none."""
        warm = launch.connect(folder)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        ours.setblocking(False)
        self._listen(ours.fileno(), ours, partial(self._read_events, ours))
        ends = []
        for lines in self._lines.values():
            reading, writing = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reading, False)
            self._listen(reading, reading, partial(self._read_lines, reading, lines))
            ends.append(writing)
        try:
            launch.send_start(warm, order, theirs.fileno(), self._stop_fd, *ends)
        except OSError:
            warm.close()
            raise
        finally:
            theirs.close()
            for end in ends:
                os.close(end)
        self._selector.register(warm, selectors.EVENT_READ, self._hear_warm)
        self._warm = warm

    @property
    def has_guardian(self) -> bool:
        """Whether the warm parent is there, and will say how this ends."""
        return self._warm is not None

    @property
    def is_gone(self) -> bool:
        """It and everything it forked. Without a guardian nobody says so; its streams end."""
        if self._warm is not None:
            return self.exit is not None
        return self.exit is not None or self.pid is None or not self._streams

    @property
    def is_heard_out(self) -> bool:
        """Nothing that it said is still under way."""
        return not self._streams

    def ask_to_stop(self, mode: StopMode) -> None:
        """It looks there after every step."""
        self._stop_byte[0] = STOP_BYTES[mode]

    def tell_stored(self, step: int) -> None:
        """The service has the checkpoint of this step: older ones may go. What is said late takes nothing back."""
        stored = int.from_bytes(self._stop_byte[STORED_AT], "little")
        self._stop_byte[STORED_AT] = max(step, stored).to_bytes(8, "little")

    def tell_deed(self, deed: Deed) -> None:
        """What somebody asks of the loop. The length goes last: no half line is read."""
        line = deed.model_dump_json().encode() + b"\n"
        os.pwrite(self._stop_fd, line, mmap.PAGESIZE + self._deed_bytes)
        self._deed_bytes += len(line)
        self._stop_byte[NEWS_AT] = self._deed_bytes.to_bytes(8, "little")

    def signal(self, number: signal.Signals) -> None:
        """Through the warm parent: only who waits for a process knows that its number is still its own."""
        if self.exit is not None:
            return
        if self._warm is None:
            if self.pid is not None:
                kill_group(self.pid, number)
        elif self.pid is None and number is signal.SIGKILL:
            # Not even started: without us it will not be, or not for long.
            self.was_let_go = True
            self.let_go()
        else:
            with suppress(OSError):
                self._warm.send(Kill(signal=number).model_dump_json().encode())

    def let_go(self) -> None:
        """The end of the lifeline."""
        if self._warm is not None:
            self._selector.unregister(self._warm)
            self._warm.close()
            self._warm = None

    def tail(self) -> str:
        """The last of what it printed."""
        lines = [line for each in self._lines.values() for line in each.tail]
        return "\n".join(lines[-outcome.OUTPUT_LINES :])[-outcome.TRACEBACK_CHARS :]

    def close(self) -> None:
        self.let_go()
        for fd in list(self._streams):
            self._end_stream(fd)
        self._stop_byte.close()
        os.close(self._stop_fd)

    def _listen(self, fd: int, stream: Any, read: Callable[[], None]) -> None:
        self._streams[fd] = stream
        self._selector.register(fd, selectors.EVENT_READ, read)

    def _end_stream(self, fd: int) -> None:
        stream = self._streams.pop(fd)
        self._selector.unregister(fd)
        os.close(stream) if isinstance(stream, int) else stream.close()

    def _hear_warm(self) -> None:
        if self._warm is None:
            return
        try:
            packet = self._warm.recv(4096)
        except OSError:
            packet = b""
        if not packet:
            # It dies with everything it forked, but for what that had forked in turn.
            self.let_go()
            return
        message = FROM_WARM.validate_json(packet)
        if isinstance(message, Started):
            self.pid, self.heard_at = message.pid, time.monotonic()
        else:
            self.exit = message

    def _read_events(self, stream: socket.socket) -> None:
        for _ in range(BITES):
            try:
                chunk = stream.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._end_stream(stream.fileno())
                return
            self.heard_at = time.monotonic()
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            if len(self._unread) > MAX_LINE_BYTES:
                self._unread = b""
            self._on_events([event for line in lines if (event := self._understand(line)) is not None])

    def _read_lines(self, fd: int, lines: Lines) -> None:
        for _ in range(BITES):
            try:
                chunk = os.read(fd, READ_BYTES)
            except BlockingIOError:
                return
            self.heard_at = time.monotonic()
            self._on_events(lines.take(chunk))
            if not chunk:
                self._end_stream(fd)
                return

    def _understand(self, line: bytes) -> dict[str, Any] | None:
        """An event, if it is one."""
        try:
            said = json.loads(line)
            kind, data = said["kind"], said["data"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if not isinstance(data, dict) or not isinstance(kind, str):
            return None
        if kind == launch.OUTCOME:
            with suppress(ValidationError):
                self.told = DoneData.model_validate(data)
        if kind == launch.TICK and "forked_ms" in data:
            log.info("training runs as %s: forked in %s ms", self.pid, data["forked_ms"])
        return _checked(said) if kind in TOLD_BY_TRAINING else None


def _checked(said: dict[str, Any]) -> dict[str, Any]:
    step, epoch, at = said.get("step"), said.get("epoch"), said.get("at")
    return {
        "kind": Kind(said["kind"]),
        "at": at if isinstance(at, str) and len(at) < 40 else now_text(),
        "step": step if isinstance(step, int) else None,
        "epoch": epoch if isinstance(epoch, int | float) else None,
        "data": said["data"],
    }
