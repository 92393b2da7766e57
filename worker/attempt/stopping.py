"""A stop that an attempt obeys: which one, until when, and what its training is sent meanwhile."""

from __future__ import annotations

import signal
import time

from footplate.contract.lifecycle import StopMode
from footplate.contract.messages import Stop
from worker.attempt.training_processes import Training

TERM_SHARE, KILL_SHARE = 0.8, 0.9
"""Of the time that a stop allows: then SIGTERM, then SIGKILL."""


class Stopping:
    """Of one attempt: training is asked, then told, then killed."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.stop: Stop | None = None
        """The one that counts."""
        self._until = 0.0
        self._escalations: list[tuple[float, signal.Signals]] = []

    def obey(self, stop: Stop) -> None:
        """The same stop comes with every beat. Another one of control's counts anew, but never later."""
        known, ours = self.stop, stop.because in ("drain", "time_limit")
        if known is not None and (ours or (known.because, known.mode) == (stop.because, stop.mode)):
            return
        now = time.monotonic()
        until = now + stop.within_seconds
        self.stop, self._until = stop, until if known is None else min(until, self._until)
        if stop.mode is StopMode.KILL:
            self._escalations = [(now, signal.SIGKILL)]
            return
        self._training.ask_to_stop(stop.mode)
        left = self._until - now
        self._escalations = [(now + left * TERM_SHARE, signal.SIGTERM), (now + left * KILL_SHARE, signal.SIGKILL)]

    def due_in(self, longest: float) -> float:
        """Until training is sent something."""
        return min(longest, max(0.0, self._escalations[0][0] - time.monotonic())) if self._escalations else longest

    def look(self, now: float) -> None:
        while self._escalations and now >= self._escalations[0][0]:
            self._training.signal(self._escalations.pop(0)[1])

    @property
    def leaves_no_time(self) -> bool:
        """To hand in what training has written."""
        # What another node came to ends training here, and not what a script of both has written.
        if self.stop is None or self.stop.because == "peer":
            return False
        return self.stop.mode is StopMode.KILL or time.monotonic() > self._until
