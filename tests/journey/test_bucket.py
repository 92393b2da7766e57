"""Tests a job whose artifacts are in a bucket of moto's S3, because service and nodes share no folder."""

from __future__ import annotations

import io
import os
import shutil
import signal
import tarfile
from functools import partial

import pytest

from footplate.contract.bucket import RemoteStore
from tests.support.gates import Gate
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.s3_server import S3Server
from tests.support.system import JSON, LONG_TOY, SHORT_TOY, System, assert_whole

KEEPS_TWO: JSON = {**LONG_TOY, "training": {**LONG_TOY["training"], "save_total_limit": 2}}


@pytest.fixture
def system(processes: Processes, redis: RedisServer, sqlite_url: str, s3: S3Server) -> System:
    return System(processes, redis, sqlite_url, FOOTPLATE_CODE="on", **s3.environment("journey"))


@pytest.mark.matrix
def test_a_job_continues_on_a_node_that_fetches_its_checkpoints(system: System, s3: S3Server) -> None:
    system.start_service()
    for number in (1, 2):
        system.start_node(number, wait=False)
    for number in (1, 2):
        is_up = partial(system.node_is_up, number)
        system.processes.until(is_up, within=60, what=f"node {number} takes work")
    early, late = system.gate(), system.gate()
    quiet = system.submit(KEEPS_TWO, callbacks=[late.at(45)])
    job = system.submit(KEEPS_TWO, callbacks=[early.at(35)])
    system.until_reached(job, early, 35)
    system.until_checkpoint(job, 30, within=60)
    [first_node] = system.get(f"/jobs/{job}/attempts")["data"][0]["nodes"]
    system.nodes[int(first_node["name"].removeprefix("node-"))].signal(signal.SIGKILL)
    shutil.rmtree(system.folder / first_node["name"], ignore_errors=True)
    training_continues_while_the_bucket_is_unreachable(system, s3, quiet, late)

    final_job, expected = (system.until_settled(job_id, within=90) for job_id in (job, quiet))

    assert (final_job["state"], final_job["attempt"]) == ("succeeded", 2), final_job["error"]
    assert (expected["state"], expected["attempt"]) == ("succeeded", 1), expected["error"]
    assert system.losses(job) == system.losses(quiet)
    assert system.final_weights(job) == system.final_weights(quiet)
    events = system.events(job)
    assert_whole(events)
    first = next(event["step"] for event in events if event["kind"] == "log" and event["attempt"] == 2)
    assert first == 31, "the attempt must continue from a checkpoint of the other node"
    files_are_readable_and_deleted_with_the_job(system, job)
    a_fork_starts_from_the_bucket(system, quiet)
    a_job_that_waits_for_the_bucket_can_be_cancelled(system, s3)
    node = next(number for number in (1, 2) if f"node-{number}" != first_node["name"])
    assert system.nodes[node].terminate(30) == 0
    assert os.listdir(system.folder / f"node-{node}" / "work") == []


def training_continues_while_the_bucket_is_unreachable(system: System, s3: S3Server, quiet: str, gate: Gate) -> None:
    system.until_reached(quiet, gate, 45)
    system.until_checkpoint(quiet, 40, within=60)
    with s3.away():
        gate.open(45)
        system.until(
            lambda: has_event_with(system, quiet, "store_away"), within=40, what="the job reports the outage",
            job=quiet,
        )  # fmt: skip
        system.until_step(quiet, 75, within=60)
        assert newest(system, quiet) == 40
        assert "artifacts" in system.get("/readyz")["degraded"]
        system.processes.until(
            lambda: any("artifact store cannot be read" in (node["message"] or "") for node in nodes(system)),
            within=30, what="the node takes no more work, and reports why",
        )  # fmt: skip
    system.until(
        lambda: has_event_with(system, quiet, "store_back"),
        within=40,
        what="the job reports that the store is back",
        job=quiet,
    )


def has_event_with(system: System, job: str, code: str) -> bool:
    return any(event["data"].get("code") == code for event in system.events(job))


def newest(system: System, job: str) -> int:
    return max(row["step"] for row in system.get(f"/jobs/{job}/checkpoints")["data"])


def nodes(system: System) -> list[JSON]:
    return list(system.get("/nodes")["data"])


def files_are_readable_and_deleted_with_the_job(system: System, job: str) -> None:
    store = RemoteStore(system.environment["FOOTPLATE_ARTIFACTS"])
    rows = system.get(f"/jobs/{job}/checkpoints")["data"]
    latest = rows[0]
    files = system.get(f"/jobs/{job}/checkpoints/latest/files")["data"]
    for file in files:
        answer = system.client.get(
            f"/jobs/{job}/checkpoints/latest/files/{file['path']}", headers={"Range": "bytes=0-9"}
        )
        assert (answer.status_code, len(answer.content)) == (206, min(10, file["bytes"]))
    with tarfile.open(fileobj=io.BytesIO(system.client.get(f"/jobs/{job}/checkpoints/latest/archive").content)) as tar:
        assert {member.name for member in tar} == {f"checkpoint-{latest['step']}/{item['path']}" for item in files}
    system.processes.until(
        lambda: checkpoints_in(store, job) == {row["path"] for row in rows if row["status"] == "committed"},
        within=30, what="superfluous checkpoints are gone from the bucket",
    )  # fmt: skip
    assert system.client.delete(f"/jobs/{job}").status_code == 204
    assert store.files(f"jobs/{job}") == []


def checkpoints_in(store: RemoteStore, job: str) -> set[str]:
    result = (file.path.split("/") for file in store.files(f"jobs/{job}"))
    return {f"jobs/{job}/attempts/{parts[1]}/{parts[2]}" for parts in result if parts[2].startswith("checkpoint-")}


def a_fork_starts_from_the_bucket(system: System, job: str) -> None:
    body = {"checkpoint": "latest", "mode": "weights", "patch": {"training": {"max_steps": 3}}}
    forked = system.client.post(f"/jobs/{job}/fork", json=body).json()["id"]
    assert system.until_settled(forked, within=60)["state"] == "succeeded"


def a_job_that_waits_for_the_bucket_can_be_cancelled(system: System, s3: S3Server) -> None:
    """Training has ended, but its outputs are not uploaded, so the job is still running."""
    gate = system.gate()
    job = system.submit(SHORT_TOY, callbacks=[gate.at(5)])
    system.until_reached(job, gate, 5)
    with s3.away():
        gate.open(5)
        system.until(
            lambda: has_event_with(system, job, "store_away"),
            within=60,
            what="the job reports that its outputs wait for the store",
            job=job,
        )
        assert system.state(job) == "running"
        assert system.do(job, "cancel", {"mode": "kill"}).status_code == 202
        system.until_state(job, "cancelled", within=30)
