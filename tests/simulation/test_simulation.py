"""Checks that no promise is broken in random histories with faults, and that no job is stuck at their end."""

from __future__ import annotations

import os

import pytest

from tests.simulation.ground import Ground
from tests.simulation.seeds import VARIABLE, report_of, run

SEEDS = 25
"""Enough seeds to notice every protection that is off, as test_mutations.py shows."""
POSTGRES_SEEDS = 3
SOAK_SEEDS = 10_000
SHARES = 20
"""The number of tests that share the seeds of `make soak`, so that one failing seed does not hide the others."""


def all_go_well(seeds: range, ground: Ground) -> None:
    for seed in seeds:
        if run(seed, ground).error is not None:
            pytest.fail(report_of(seed, ground), pytrace=False)


def test_the_simulation_breaks_no_promise_with_many_seeds(ground: Ground) -> None:
    """Runs only the seed that the environment names, if there is one."""
    seed = os.environ.get(VARIABLE)
    all_go_well(range(SEEDS) if seed is None else range(int(seed), int(seed) + 1), ground)


@pytest.mark.postgres
def test_the_simulation_breaks_no_promise_with_some_seeds_on_postgres(postgres_url: str) -> None:
    ground = Ground(postgres_url)
    try:
        all_go_well(range(POSTGRES_SEEDS), ground)
    finally:
        ground.close()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(SHARES))
def test_the_simulation_breaks_no_promise_with_ten_thousand_seeds(share: int, ground: Ground) -> None:
    seeds = range(SOAK_SEEDS)[share::SHARES]
    all_go_well(seeds, ground)


def test_a_seed_always_gives_the_same_history(ground: Ground) -> None:
    stories = {run(7, ground).world.story() for _ in range(2)}

    assert len(stories) == 1
    assert "is granted" in stories.pop()
