"""Formats events as lines of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from footplate.cli.text import number, short

if TYPE_CHECKING:
    from footplate.contract.events import Event


def line_of(event: Event) -> str:
    """Returns an event as a line of text, or an empty text for kinds that are not printed, such as progress."""
    writer = _WRITERS.get(event.kind)
    return writer(event) if writer else ""


def _state(event: Event) -> str:
    reason, message = event.data.get("reason"), event.data.get("message")
    attempt = f"attempt {event.attempt}: " if event.attempt > 1 else ""
    text = f"{attempt}{event.data.get('state')}" + (f" ({message or reason})" if message or reason else "")
    is_paused = event.data.get("state") == "paused"
    return f"{text}; `footplate resume {short(event.job)}` continues it" if is_paused else text


def _metrics(event: Event) -> str:
    figures = "  ".join(f"{name} {number(value)}" for name, value in event.data.items())
    return f"step {event.step}  {figures}"


def _checkpoint(event: Event) -> str:
    data = event.data
    best_text = ", the best so far" if data.get("is_best") else ""
    message = f": {data['message']}" if data.get("message") else ""
    return f"checkpoint of step {event.step} {data.get('status')}{best_text}{message}"


def _message(event: Event) -> str:
    return str(event.data.get("message") or event.data)


_WRITERS: dict[str, Callable[[Event], str]] = {
    "state": _state,
    "log": _metrics,
    "eval": _metrics,
    "checkpoint": _checkpoint,
    "do": lambda event: ("" if event.step is None else f"step {event.step}  ") + _message(event),
    "note": _message,
    "line": lambda event: f"| {event.data.get('text')}".rstrip(),
    "gap": lambda event: f"events are missing here: {_message(event)}",
}
