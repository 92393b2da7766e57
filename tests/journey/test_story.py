"""Whole stories over the real parts, on both databases: what a user meets whose machines do not stand still."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import until
from tests.support.system import LONG_TOY, SHORT_TOY, System, assert_whole


def test_cancel_while_queued_is_immediate_and_no_worker_starts_it(system: System) -> None:
    system.start_service()
    job = system.submit()
    system.until(lambda: system.job(job)["reason"] == "no_such_shape", within=10, what="it knows why it waits", job=job)

    answer = system.do(job, "cancel")
    system.start_node()
    other = system.submit(SHORT_TOY)

    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert system.until_settled(other)["state"] == "succeeded"
    assert system.job(job)["attempt"] == 0


def test_cancel_while_starting_is_immediate_and_the_late_claim_is_denied(system: System) -> None:
    system.start()
    system.nodes[1].freeze()
    job = system.submit()
    system.until_state(job, "starting")

    answer = system.do(job, "cancel")
    system.nodes[1].thaw()
    other = system.submit(SHORT_TOY)

    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert system.until_settled(other)["state"] == "succeeded"
    assert [e["data"]["state"] for e in system.events(job) if e["kind"] == "state"][-1] == "cancelled"
    assert system.losses(job) == {}


def test_two_nodes_share_the_work(system: System) -> None:
    system.start_service()
    system.start_node(1)
    system.start_node(2)

    jobs = [system.submit(), system.submit()]
    for job in jobs:
        system.until_state(job, "running")

    assert len({system.job(job)["nodes"][0] for job in jobs}) == 2
    assert [system.until_settled(job)["state"] for job in jobs] == ["succeeded", "succeeded"]


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


def test_a_post_with_redis_down_is_accepted_and_runs_when_it_returns(system: System) -> None:
    system.start()
    system.redis.kill()

    job = system.submit(SHORT_TOY)
    assert system.client.get(f"/jobs/{job}").status_code == 200
    assert "redis" in system.get("/readyz")["degraded"]
    system.redis.start()

    assert system.until_settled(job)["state"] == "succeeded"


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


def test_two_jobs_get_a_gpu_each_and_a_third_waits_for_capacity(system: System) -> None:
    system.start_service()
    system.start_node(slots=2, FOOTPLATE_GPUS="GPU-a:simulated:8192:8.0, GPU-b:simulated:8192:8.0")
    spec = {**LONG_TOY, "resources": {"gpus_per_node": 1}}

    first, second, third = (system.submit(spec) for _ in range(3))
    running = [system.until_state(job, "running") for job in (first, second)]
    waiting = system.job(third)

    gpus = [system.get(f"/jobs/{job['id']}/attempts")["data"][0]["nodes"][0]["gpus"] for job in running]
    assert sorted(gpus) == [["GPU-a"], ["GPU-b"]]
    assert (waiting["state"], waiting["reason"]) == ("queued", "capacity")
    for job, granted in zip(running, gpus, strict=True):
        assert "REDIS" not in Path(f"/proc/{system.training_pids(job['id'])[0]}/environ").read_text()
        assert granted  # the mask itself is asserted where it is set, in tests/worker
    assert system.until_settled(third)["state"] == "succeeded"
