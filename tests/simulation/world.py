"""Time, randomness and the history of one seed, in which one thing happens at a time."""

from __future__ import annotations

import heapq
import types
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from footplate.contract.ids import ClaimId, JobId, NodeId

YEAR_2027_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


class Violation(AssertionError):
    """Raised when a promise is broken."""


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults of a seed, and the probabilities that messages and calls are disturbed."""

    faults: frozenset[str]
    drop: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    half: float = 0.0
    """The probability that a call fails after some or all of it was done."""
    interleave: float = 0.1
    """The probability that control is interrupted at a step."""


QUIET = Weather(frozenset(), interleave=0.0)


class World:
    def __init__(self, seed: int, weather: Weather, folder: Path) -> None:
        self.seed, self.weather, self.folder = seed, weather, folder
        self.dice = Random(seed)
        self.rotates = "rotation" in weather.faults
        """True if jobs limit their checkpoints. Unlike faults, this does not end when the adversary stops."""
        self.clock = 0.0
        """Seconds of the monotonic clock, which is the same in all processes."""
        self.wall_ms = YEAR_2027_MS
        """The time of the wall clock when the monotonic clock is 0."""
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entries = 0
        self._story: list[tuple[float, str, str, tuple[Any, ...]]] = []
        self._names: dict[str, str] = {}

    # Time

    def now_ms(self) -> int:
        return self.wall_ms + round(self.clock * 1000)

    def after(self, seconds: float, do: Callable[..., None], *args: Any) -> None:
        self._entries += 1
        heapq.heappush(self._agenda, (self.clock + seconds, self._entries, do, args))

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Runs the due actions in order, up to this time of the monotonic clock."""
        while self._agenda and self._agenda[0][0] <= until and not is_over():
            self.clock, _, do, args = heapq.heappop(self._agenda)
            do(*args)
        if not is_over():
            self.clock = until

    # Chance

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.dice.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.dice.random()

    def transmit(self, deliver: Callable[[], None]) -> None:
        """Delivers a message once, twice, never, or late and therefore after messages that were sent later."""
        weather = self.weather
        if self.chance(weather.drop):
            return
        if self.chance(weather.twice):
            deliver()
        if self.chance(weather.late):
            self.after(self.between(0.1, 12.0), deliver)
        else:
            deliver()

    async def interrupt_sometimes(self) -> None:
        """Interrupts control with some probability: for a moment, for long, or for ever."""
        if self.chance(self.weather.interleave):
            await _interrupted()

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{self.now_ms():012x}{self.dice.getrandbits(80):020x}"

    def new_job(self) -> JobId:
        return JobId(self.new_id("job"))

    def new_claim(self) -> ClaimId:
        return ClaimId(self.new_id("claim"))

    def new_node(self) -> NodeId:
        return NodeId(self.new_id("node"))

    def must(self, holds: bool, what: str, *args: object) -> None:
        if not holds:
            raise Violation(what.format(*(self._names.get(arg, arg) if isinstance(arg, str) else arg for arg in args)))

    # The story

    def call(self, thing: str, name: str) -> str:
        """Gives an id a name, which the history uses from now on."""
        self._names[thing] = name
        return name

    def name(self, thing: str) -> str:
        return self._names.get(thing, thing)

    def say(self, actor: str, what: str, *args: Any) -> None:
        self._story.append((self.clock, actor, what, args))

    def story(self) -> str:
        lines = []
        for number, (at, actor, what, args) in enumerate(self._story, 1):
            names = [self._names.get(arg, arg) if isinstance(arg, str) else arg for arg in args]
            lines.append(f"{number:5} {at:8.3f} {actor:10} {what.format(*names)}")
        return "\n".join(lines)


@types.coroutine
def _interrupted() -> Generator[None, None, None]:
    yield
