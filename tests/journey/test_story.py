"""Whole stories over the real parts, on both databases: what a user meets whose machines do not stand still."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import until
from tests.support.system import LONG_TOY, SHORT_TOY, System, assert_whole


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


@pytest.mark.matrix
def test_two_jobs_get_a_gpu_each_a_third_waits_and_who_needs_none_runs_elsewhere(system: System) -> None:
    system.start_service()
    system.start_node(1, slots=2, FOOTPLATE_GPUS="GPU-a:simulated:8192:8.0, GPU-b:simulated:8192:8.0")
    system.start_node(2)
    spec = {**LONG_TOY, "resources": {"gpus_per_node": 1}}

    gates = [system.gate(), system.gate()]
    first, second = (system.submit(spec, callbacks=[gate.at(1)]) for gate in gates)
    third = system.submit(spec)
    running = [system.until_state(job, "running") for job in (first, second)]
    elsewhere = system.until_state(system.submit(SHORT_TOY), "running", "succeeded")
    waiting = system.job(third)

    gpus = [system.get(f"/jobs/{job['id']}/attempts")["data"][0]["nodes"][0]["gpus"] for job in running]
    assert sorted(gpus) == [["GPU-a"], ["GPU-b"]]
    assert (waiting["state"], waiting["reason"]) == ("queued", "capacity")
    assert [job["nodes"] for job in running] == [["node-1"], ["node-1"]]
    for job, granted in zip(running, gpus, strict=True):
        assert "REDIS" not in Path(f"/proc/{system.training_pids(job['id'])[0]}/environ").read_text()
        assert granted  # the mask itself is asserted where it is set, in tests/worker
    for gate in gates:
        gate.open(1)
    assert [run["name"] for run in system.get(f"/jobs/{elsewhere['id']}/attempts")["data"][0]["nodes"]] == ["node-2"]
    assert system.until_settled(third)["state"] == "succeeded"
