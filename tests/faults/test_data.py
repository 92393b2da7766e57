"""Tests data that is missing, disappears during a run, or is truncated. The error names it, and checkpoints stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, System, assert_whole

NAME = "data://here.jsonl"
ENDLESS: JSON = {
    "model": "toy/mlp",
    "data": {"use": "files/jsonl", "args": {"paths": [NAME]}},
    "training": {
        "max_steps": 1_000_000, "per_device_train_batch_size": 4, "logging_steps": 10, "save_strategy": "steps",
        "save_steps": 50, "save_total_limit": 2,
    },
    "retry": {"max_attempts": 3, "on": ["node_lost", "crashed", "stalled"]},
}  # fmt: skip


@pytest.fixture
def system(processes: Processes, redis: RedisServer, sqlite_url: str, protection_off: list[str]) -> System:
    """Starts a system on SQLite, because these tests do not depend on the database."""
    return System(processes, redis, sqlite_url, without=protection_off).start()


@pytest.mark.fault(21, without="changed rows are not trained on", red="it goes on with other rows")
@pytest.mark.fault(21, without="a row that cannot be read names its file", red="failed for another reason")
def test_data_that_disappears_during_a_run_fails_the_job_and_keeps_its_checkpoint(system: System) -> None:
    file = system.folder / "data/here.jsonl"
    write(file)
    job = system.submit(ENDLESS)
    system.until_checkpoint(job, 50)
    file.unlink()
    assert_blames(system, job, str(file))
    saved_step = newest_checkpoint(system, job)

    write(file, scale=32)
    assert system.do(job, "resume").status_code == 202
    system.until(
        lambda: system.state(job) == "failed" or newest_checkpoint(system, job) > saved_step,
        within=60, what="the resumed attempt accepts or refuses the changed file", job=job,
    )  # fmt: skip
    assert system.state(job) == "failed", "it goes on with other rows"
    assert_blames(system, job, f"{NAME} has changed")

    write(file)
    assert system.do(job, "resume").status_code == 202
    system.until_checkpoint(job, saved_step + 50)
    file.write_text("")
    assert_blames(system, job, str(file))

    events = system.events(job)
    assert_whole(events)
    second = [event["step"] for event in events if event["attempt"] == 3 and event["kind"] == "log"]
    assert second[0] > saved_step, "training did not continue from its checkpoint"


def assert_blames(system: System, job: str, name: str) -> None:
    outcome = system.until_settled(job)
    assert (outcome["state"], outcome["reason"]) == ("failed", "dataset_error"), f"failed for another reason: {outcome}"
    assert name in outcome["error"]["message"]


def newest_checkpoint(system: System, job: str) -> int:
    rows = system.get(f"/jobs/{job}/checkpoints")["data"]
    return max(int(row["step"]) for row in rows if row["status"] == "committed")


def write(file: Path, scale: int = 64) -> None:
    file.parent.mkdir(exist_ok=True)
    rows = [{"x": [n / scale + i for i in range(8)], "labels": [n / 64] * 4} for n in range(64)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
