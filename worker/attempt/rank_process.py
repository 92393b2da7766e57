"""Reads the events and the printed lines of one training process, for its supervisor.

Events are checked, because users' code can write anything to the process's socket. Printed lines become `line` events.
Long lines are cut, and lines that are printed too fast are only counted. A progress bar that redraws its line becomes
at most one line every ten seconds, and one for its last state.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from pydantic import ValidationError

from footplate.contract.events import DoneData, Ending, Kind, now_text
from footplate.contract.host import launch, outcome
from footplate.contract.host.launch import Exited

log = logging.getLogger("footplate.worker")

READ_BYTES = 256 * 1024
MOST_READS = 16
"""The most reads in a row from one stream, so that much output does not delay the checks of limits."""
MAX_LINE_BYTES = 1024 * 1024
BUFFER_BYTES = 4 * 1024 * 1024
LAST_REPORTS_SECONDS = 2.0
"""The time after an exit in which output is still read, because a process that escaped may hold the pipe open."""
MAX_LINE_CHARS = 4096
LINES_PER_SECOND = 200.0
BURST_LINES = 2000.0
REDRAW_SECONDS = 10.0
"""The least time between two states of a progress bar that are kept."""
TAIL_LINES = 100
"""The last lines that an error quotes: enough for faulthandler's report of a crash inside torch."""
KINDS_OF_EVERY_RANK = frozenset({Kind.STATE, Kind.NOTE})
KINDS_OF_THE_FIRST_RANK = KINDS_OF_EVERY_RANK | {Kind.LOG, Kind.EVAL, Kind.CHECKPOINT, Kind.PROGRESS, Kind.DO}

Events = list[dict[str, Any]]

_UP = "\x1b[A"
"""Moves a terminal's cursor up. tqdm ends the line of an inner bar with it."""
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class PrintedLines:
    """Turns the bytes of one rank's stdout or stderr into `line` events. `tail` has the last lines, for errors."""

    def __init__(self, stream: str, rank: int = 0) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stream, self._rank = stream, rank
        self._partial_line = b""
        self._room, self._seen_at = BURST_LINES, time.monotonic()
        self._left_out = 0
        self._redrawn_at = -math.inf

    def read(self, chunk: bytes) -> Events:
        """Returns the events of the lines in a chunk. An empty chunk ends the stream."""
        now = time.monotonic()
        self._room = min(BURST_LINES, self._room + (now - self._seen_at) * LINES_PER_SECOND)
        self._seen_at = now
        complete_lines, self._partial_line = self._cut(chunk)
        if not complete_lines:
            return self._mark() if not chunk else []
        if self._room < 1:
            # These lines are only counted, because splitting a flood of lines would cost more than printing it.
            self._left_out += complete_lines.count(b"\n")
            self.tail.extend(complete_lines[-MAX_LINE_CHARS:].decode("utf-8", "replace").split("\n")[-TAIL_LINES:])
            return []
        lines = complete_lines.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
        if lines and not lines[-1]:
            lines.pop()
        if b"\r" in complete_lines or b"\x1b" in complete_lines:
            lines = [text for line in lines if (text := self._as_shown(line)) is not None]
        reported_lines = lines[: int(self._room)]
        events = self._mark() + [self._event(line) for line in reported_lines]
        self._room -= len(reported_lines)
        self._left_out += len(lines) - len(reported_lines)
        self.tail.extend(line[:MAX_LINE_CHARS] for line in lines[-TAIL_LINES:])
        return events

    def _cut(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Returns the whole lines and the beginning of the next line.

        A very long beginning counts as a line. So does a progress bar that has been redrawn for `REDRAW_SECONDS`.
        """
        data = self._partial_line + chunk
        if not chunk or (len(data) > 16 * MAX_LINE_CHARS and b"\n" not in data):
            return data, b""
        end = data.rfind(b"\n") + 1
        redrawn = data.rfind(b"\r", 0, -1)
        if redrawn > end and self._redraws():
            end = redrawn
        return data[:end], data[end:]

    def _as_shown(self, line: str) -> str | None:
        """Returns the line as a terminal shows it after all redraws, or None if no event is needed for it now."""
        is_inner_bar = line.endswith(_UP)
        states = [state for state in _ESCAPES.sub("", line).split("\r") if state.strip()]
        if not states:
            return None if line else ""
        return None if is_inner_bar and not self._redraws() else states[-1].rstrip()

    def _redraws(self) -> bool:
        """Returns True at most once in REDRAW_SECONDS, when the present state of a progress bar should be kept."""
        now = time.monotonic()
        if now - self._redrawn_at < REDRAW_SECONDS:
            return False
        self._redrawn_at = now
        return True

    def _event(self, text: str) -> dict[str, Any]:
        data: dict[str, Any] = {"stream": self._stream, "text": text[:MAX_LINE_CHARS]}
        if len(text) > MAX_LINE_CHARS:
            data["cut"] = len(text) - MAX_LINE_CHARS
        return {"rank": self._rank, "kind": Kind.LINE, "at": now_text(), "data": data}

    def _mark(self) -> Events:
        if not self._left_out:
            return []
        text = f"[{self._left_out} lines are left out here, because training prints too fast]"
        event = self._event(text)
        event["data"]["left_out"], self._left_out = self._left_out, 0
        return [event]


class Rank:
    """One training process. Its socket and pipes are in the selector, each with the function that reads it."""

    def __init__(
        self, number: int, selector: selectors.BaseSelector, on_events: Callable[[Rank, Events], None]
    ) -> None:
        self.number = number
        self.pid: int | None = None
        self.exit: Exited | None = None
        self.exited_at = 0.0
        self.report: DoneData | None = None
        """The outcome that the rank itself has reported."""
        self._has_logged_start = False
        self.runs = False
        """True once the rank reported that it runs."""
        self._selector, self._on_events = selector, on_events
        self._streams: dict[int, Any] = {}
        self._unread = b""
        self._lines = {name: PrintedLines(name, number) for name in ("stdout", "stderr")}
        self._kinds = KINDS_OF_EVERY_RANK if number else KINDS_OF_THE_FIRST_RANK

    @contextmanager
    def opened(self) -> Iterator[tuple[int, int, int]]:
        """Opens a socket and two pipes. Yields the descriptors for the new process, and closes its ends afterwards."""
        supervisor_socket, rank_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        rank_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        supervisor_socket.setblocking(False)
        self._listen(supervisor_socket.fileno(), supervisor_socket, partial(self._read_events, supervisor_socket))
        ends: list[int] = []
        for lines in self._lines.values():
            reading, writing = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reading, False)
            self._listen(reading, reading, partial(self._read_lines, reading, lines))
            ends.append(writing)
        try:
            yield rank_socket.fileno(), ends[0], ends[1]
        finally:
            rank_socket.close()
            for end in ends:
                os.close(end)

    @property
    def failed(self) -> bool:
        """True if the rank reported a failure, or exited without a report."""
        if self.report is not None:
            return self.report.ending is Ending.FAILED
        return self.exit is not None and (self.is_read_out or time.monotonic() > self.exited_at + LAST_REPORTS_SECONDS)

    @property
    def is_follow_up(self) -> bool:
        """True if the rank reported that it failed because another rank had failed."""
        return self.report is not None and self.report.is_follow_up

    @property
    def is_gone(self) -> bool:
        """True if the process has ended. If the warm parent has died, the end of the process's streams shows that."""
        return self.exit is not None or self.pid is None or not self._streams

    @property
    def is_read_out(self) -> bool:
        """True if everything that the process sent has been read."""
        return not self._streams

    def tail(self) -> str:
        """Returns the last lines that the process printed."""
        lines = [line for stream in self._lines.values() for line in stream.tail]
        return "\n".join(lines[-outcome.OUTPUT_LINES :])[-outcome.TRACEBACK_CHARS :]

    def stderr_tail(self) -> list[str]:
        """Returns the last lines that the process printed on stderr."""
        return list(self._lines["stderr"].tail)

    def close(self) -> None:
        for fd in list(self._streams):
            self._end_stream(fd)

    def _listen(self, fd: int, stream: Any, on_readable: Callable[[], None]) -> None:
        self._streams[fd] = stream
        self._selector.register(fd, selectors.EVENT_READ, on_readable)

    def _end_stream(self, fd: int) -> None:
        stream = self._streams.pop(fd)
        self._selector.unregister(fd)
        os.close(stream) if isinstance(stream, int) else stream.close()

    def _read_events(self, stream: socket.socket) -> None:
        for _ in range(MOST_READS):
            try:
                chunk = stream.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._end_stream(stream.fileno())
                return
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            if len(self._unread) > MAX_LINE_BYTES:
                self._unread = b""
            self._on_events(self, [event for line in lines if (event := self._parse(line)) is not None])

    def _read_lines(self, fd: int, lines: PrintedLines) -> None:
        for _ in range(MOST_READS):
            try:
                chunk = os.read(fd, READ_BYTES)
            except BlockingIOError:
                return
            self._on_events(self, lines.read(chunk))
            if not chunk:
                self._end_stream(fd)
                return

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        """Returns the event in a line of the socket. Returns None for ticks, reports, and what is not an event."""
        try:
            message = json.loads(line)
            kind, data = message["kind"], message["data"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if not isinstance(data, dict) or not isinstance(kind, str):
            return None
        if kind == launch.OUTCOME:
            with suppress(ValidationError):
                self.report = DoneData.model_validate(data)
        if kind == launch.TICK and not self._has_logged_start:
            self._log_start(data.get("forked_ms"))
        if kind not in self._kinds:
            return None
        step, epoch, at = message.get("step"), message.get("epoch"), message.get("at")
        return {
            "rank": self.number,
            "kind": Kind(kind),
            "at": at if isinstance(at, str) and len(at) < 40 else now_text(),
            "step": step if isinstance(step, int) else None,
            "epoch": epoch if isinstance(epoch, int | float) else None,
            "data": data,
        }

    def _log_start(self, forked_ms: object) -> None:
        """Logs how long the fork of the process took. Ignores anything but numbers, because users' code may send it."""
        if isinstance(forked_ms, int | float) and math.isfinite(forked_ms):
            self._has_logged_start = True
            log.info("training runs as process %s, forked in %.1f ms", self.pid, min(max(forked_ms, 0.0), 1e9))
