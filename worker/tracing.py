"""Whether this node sends traces, and what a supervisor tells them of its attempt.

What sends is imported only where OpenTelemetry's own variables ask for it, and never by training: it does not even
inherit them, for a collector's key may be among them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from footplate.contract.events import DoneData
from footplate.contract.messages import Grant
from footplate.contract.tracing import asked

if TYPE_CHECKING:
    from worker.spans import Sender

log = logging.getLogger("footplate.traces")


class Untraced:
    """Told the same, and keeps nothing of it."""

    def begins(self, phase: str) -> None:
        """What came before has ended."""

    def heard(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Training said this."""

    def ends(self, done: DoneData) -> None:
        """What is left is to hand everything over."""

    def close(self) -> None: ...


class Traces:
    """Of one process. Made in the parent, which sends nothing: a thread would not survive the forks of its pool."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        found = asked(environ)
        self._sender: Sender | None = None
        self._is_on = found.is_on
        if found.wrong:
            log.warning("%s", found.wrong)
        if found.is_on:
            # Once, for all that are forked from here.
            import worker.spans  # noqa: F401

            log.info("traces are sent, as OTEL_* says")

    def of(self, grant: Grant, node: str, since: int) -> Untraced:
        """An attempt's, from the nanosecond in which its bell was heard."""
        if not self._is_on or grant.traceparent is None:
            return Untraced()
        from worker.spans import AttemptSpans, Sender

        self._sender = self._sender or Sender()
        return AttemptSpans(self._sender.tracer, grant, node, since)

    def close(self) -> None:
        """Sends what is left, or leaves it."""
        if self._sender is not None:
            self._sender.close()


@cache
def traces() -> Traces:
    return Traces(os.environ)
