"""The stop that an attempt follows, its deadline, and the signals that enforce it."""

from __future__ import annotations

import signal
import time

from footplate.contract.lifecycle import StopMode
from footplate.contract.messages import Stop
from worker.attempt.training_processes import Training

TERM_SHARE, KILL_SHARE = 0.8, 0.9
"""The shares of a stop's time after which training gets SIGTERM, and then SIGKILL."""


class Stopping:
    """The stop of one attempt: first a request, then SIGTERM, then SIGKILL."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.stop: Stop | None = None
        """The stop that is followed now."""
        self._until = 0.0
        self._escalations: list[tuple[float, signal.Signals]] = []

    def obey(self, stop: Stop) -> None:
        """Follows a stop, which comes again with every heartbeat.

        A different one has its own time, but never a later end.
        """
        current, ours = self.stop, stop.because in ("drain", "time_limit")
        if current is not None and (ours or (current.because, current.mode) == (stop.because, stop.mode)):
            return
        now = time.monotonic()
        until = now + stop.within_seconds
        self.stop, self._until = stop, until if current is None else min(until, self._until)
        if stop.mode is StopMode.KILL:
            self._escalations = [(now, signal.SIGKILL)]
            return
        self._training.request_stop(stop.mode)
        left = self._until - now
        self._escalations = [(now + left * TERM_SHARE, signal.SIGTERM), (now + left * KILL_SHARE, signal.SIGKILL)]

    def due_in(self, longest: float) -> float:
        """Returns the seconds until the next signal, at most `longest`."""
        return min(longest, max(0.0, self._escalations[0][0] - time.monotonic())) if self._escalations else longest

    def look(self, now: float) -> None:
        while self._escalations and now >= self._escalations[0][0]:
            self._training.signal(self._escalations.pop(0)[1])

    @property
    def leaves_no_time(self) -> bool:
        """True if there is no time to hand in what training has written."""
        # After another node's end this node still hands in what a script has written.
        if self.stop is None or self.stop.because == "peer":
            return False
        return self.stop.mode is StopMode.KILL or time.monotonic() > self._until
