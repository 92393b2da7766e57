"""Tests a whole story on both databases, in which every process is killed and started again."""

from __future__ import annotations

import pytest

from tests.support.processes import until
from tests.support.system import System, assert_whole


@pytest.mark.matrix
def test_everything_killed_in_the_middle_and_started_again_ends_bit_equal(system: System) -> None:
    system.start(slots=2)
    quiet = system.submit()
    assert system.until_settled(quiet)["state"] == "succeeded"
    job = system.submit()
    system.until_checkpoint(job, 20)

    system.kill_everything()
    until(lambda: system.training_pids(job) == [], within=5, what="training dies with its worker")
    system.redis.start()
    system.start(slots=2)
    final_job = system.until_settled(job)

    assert final_job["state"] == "succeeded", final_job
    assert system.losses(job) == system.losses(quiet)
    assert system.final_weights(job) == system.final_weights(quiet)
    assert_whole(system.events(job))
