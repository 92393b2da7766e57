"""Whatever happens, nothing that was promised is broken, and when it is over nothing is stuck."""

from __future__ import annotations

import os

import pytest

from tests.simulation.ground import Ground
from tests.simulation.seeds import VARIABLE, run, tell

SEEDS = 300
SOAK_SEEDS = 10_000


def all_go_well(seeds: range, ground: Ground) -> None:
    for seed in seeds:
        if run(seed, ground).error is not None:
            pytest.fail(tell(seed, ground), pytrace=False)


def test_hundreds_of_seeds_break_no_promise(ground: Ground) -> None:
    all_go_well(range(SEEDS), ground)


def test_one_seed(ground: Ground) -> None:
    """The one that the environment names: to look at it again."""
    seed = int(os.environ.get(VARIABLE, "1"))
    all_go_well(range(seed, seed + 1), ground)
