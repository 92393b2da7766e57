"""Whole stories over the real parts, on both databases: what a user meets whose machines do not stand still."""

from __future__ import annotations

import pytest

from tests.support.processes import until
from tests.support.system import SHORT_TOY, System, assert_whole


@pytest.mark.matrix
def test_everything_killed_in_the_middle_and_started_again_ends_bit_equal(system: System) -> None:
    system.start(slots=2)
    quiet = system.submit()
    assert system.until_settled(quiet)["state"] == "succeeded"
    job = system.submit()
    system.until_checkpoint(job, 20)

    system.kill_everything()
    until(lambda: system.training_pids(job) == [], within=5, what="training to die with its worker")
    system.redis.start()
    system.start(slots=2)
    done = system.until_settled(job)

    assert done["state"] == "succeeded", done
    assert system.losses(job) == system.losses(quiet)
    assert system.final_weights(job) == system.final_weights(quiet)
    assert_whole(system.events(job))


@pytest.mark.matrix
def test_api_and_control_in_processes_of_their_own_serve_as_one(system: System) -> None:
    system.start_service("control")
    system.start_service("api", name="api-1")
    system.start_node()
    job = system.submit(SHORT_TOY)
    done = system.until_settled(job)
    system.services["api-1"].kill()
    system.start_service("api", name="api-2")

    assert done["state"] == system.state(job) == "succeeded"
    assert [row["step"] for row in system.watch(f"/jobs/{job}/metrics") if "loss" in row][:20] == list(range(1, 21))
    stored = sum(event["source"] >= 0 for event in system.events(job))
    system.until(lambda: system.counted("footplate_control_events_stored_total") == stored, within=10, job=job,
                 what="the API tells Prometheus what control has counted")  # fmt: skip
    assert system.counted("footplate_control_claims_granted_total") == 1
