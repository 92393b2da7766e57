"""Runs a seed. For a failing seed, leaves out all faults that are not needed, and prints its history."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.adversary import HABITS, NETWORK, ROTATION, STRIKES, Adversary, weather_of
from tests.simulation.control import in_place_of_reality
from tests.simulation.ground import Ground
from tests.simulation.railway import CHAOS_SECONDS, QUIET_SECONDS, Railway
from tests.simulation.world import World

MEMORY = Path("/dev/shm")
VARIABLE = "FOOTPLATE_TEST_SEED"
MAX_LINES = 250
"""The number of lines of a printed history. If there are more, the last ones are printed."""


@dataclass(slots=True)
class Ran:
    world: World
    railway: Railway
    error: Exception | None = None


def run(seed: int, ground: Ground, without: frozenset[str] = frozenset()) -> Ran:
    """Runs one seed until nothing more happens, or until the first broken promise."""
    ground.clear()
    with tempfile.TemporaryDirectory(prefix="fp-sim-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        world = World(seed, weather_of(seed, without), Path(folder))
        railway = Railway(world, ground)
        result = Ran(world, railway)
        with in_place_of_reality(world), _silence():
            try:
                railway.open()
                Adversary(railway, CHAOS_SECONDS)
                world.run(until=CHAOS_SECONDS)
                railway.heal()
                world.run(until=CHAOS_SECONDS + QUIET_SECONDS, is_over=_quiet_once_a_second(railway))
                railway.close()
            except Exception as error:
                result.error = error
            finally:
                for node in railway.nodes:
                    node.down()
        return result


def _quiet_once_a_second(railway: Railway) -> Callable[[], bool]:
    """Returns a function that checks for quiet once a second, because the check reads folders."""
    asked_at = 0.0

    def is_over() -> bool:
        nonlocal asked_at
        if railway.world.clock - asked_at < 1:
            return False
        asked_at = railway.world.clock
        return railway.is_quiet()

    return is_over


def needless_faults(seed: int, ground: Ground) -> frozenset[str]:
    """Returns the faults without which the seed still fails. It leaves out one fault after another."""
    without: frozenset[str] = frozenset()
    for name in (*NETWORK, *HABITS, ROTATION, *STRIKES):
        if run(seed, ground, without | {name}).error is not None:
            without |= {name}
    return without


def report_of(seed: int, ground: Ground) -> str:
    """Returns the report of a failing seed: the error, the needed faults, and the history."""
    without = needless_faults(seed, ground)
    result = run(seed, ground, without)
    weather = result.world.weather
    lines = result.world.story().splitlines()
    return "\n".join(
        [
            f"seed {seed}: {type(result.error).__name__}: {result.error}",
            f"Needed faults: {', '.join(sorted(weather.faults)) or 'none'}; "
            f"network: {', '.join(f'{name} {getattr(weather, name):g}' for name in NETWORK if getattr(weather, name))}",
            *lines[-MAX_LINES:],
            f"Again: {VARIABLE}={seed} pytest tests/simulation -k many_seeds",
        ]
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Silences the logs of control and workers, because the history reports their errors."""
    log = logging.getLogger("footplate")
    was, log.disabled = log.level, True
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(was)
        log.disabled = False
