"""Turns what training prints into `line` events. Long lines are cut, and a flood is counted instead of kept."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from footplate.contract.events import Kind, now_text

MAX_LINE_CHARS = 4096
LINES_PER_SECOND = 200.0
BURST_LINES = 2000.0
TAIL_LINES = 100
"""Enough for faulthandler's report of a crash inside torch."""


class Lines:
    """One stream of one rank. The explanation of a crash quotes `tail`."""

    def __init__(self, stream: str, rank: int = 0) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stream, self._rank = stream, rank
        self._rest = b""
        self._room, self._seen_at = BURST_LINES, time.monotonic()
        self._left_out = 0

    def take(self, chunk: bytes) -> list[dict[str, Any]]:
        """Returns the events for what was read. An empty chunk ends the stream."""
        self._refill()
        whole, self._rest = self._cut(chunk)
        if not whole:
            return self._mark() if not chunk else []
        if self._room < 1:
            # Only counted, because splitting a flood would cost more than printing it.
            self._left_out += whole.count(b"\n")
            self._remember(whole[-MAX_LINE_CHARS:])
            return []
        lines = whole.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if lines and not lines[-1]:
            lines.pop()
        taken = lines[: int(self._room)]
        events = self._mark() + [self._event(line) for line in taken]
        self._room -= len(taken)
        self._left_out += len(lines) - len(taken)
        self.tail.extend(line[:MAX_LINE_CHARS] for line in lines[-TAIL_LINES:])
        return events

    def _refill(self) -> None:
        now = time.monotonic()
        self._room = min(BURST_LINES, self._room + (now - self._seen_at) * LINES_PER_SECOND)
        self._seen_at = now

    def _cut(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Returns the whole lines and the rest. A line without an end is cut when it is too long."""
        data = self._rest + chunk
        if not chunk or (len(data) > 16 * MAX_LINE_CHARS and b"\n" not in data):
            return data, b""
        end = data.rfind(b"\n") + 1
        return data[:end], data[end:]

    def _remember(self, data: bytes) -> None:
        self.tail.extend(data.decode("utf-8", "replace").split("\n")[-TAIL_LINES:])

    def _event(self, text: str) -> dict[str, Any]:
        data: dict[str, Any] = {"stream": self._stream, "text": text[:MAX_LINE_CHARS]}
        if len(text) > MAX_LINE_CHARS:
            data["cut"] = len(text) - MAX_LINE_CHARS
        return {"rank": self._rank, "kind": Kind.LINE, "at": now_text(), "data": data}

    def _mark(self) -> list[dict[str, Any]]:
        if not self._left_out:
            return []
        text = f"[{self._left_out} lines are left out here, because training prints too fast]"
        event = self._event(text)
        event["data"]["left_out"], self._left_out = self._left_out, 0
        return [event]
