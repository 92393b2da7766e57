"""Rows that lie where a URL says, through the whole server: fetched before training, and the same to the job's end."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator

import pytest

from tests.support.file_server import FileServer, file_server
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, System

SETTING = {"FOOTPLATE_STORES_ALLOW": "127.0.0.1/32"}


@pytest.fixture
def store() -> Iterator[FileServer]:
    with file_server() as store:
        store.files["/rows.jsonl"] = rows(0)
        yield store


@pytest.fixture
def system(processes: Processes, redis: RedisServer, sqlite_url: str) -> System:
    return System(processes, redis, sqlite_url, **SETTING)


def rows(more: int) -> bytes:
    made = [{"x": [at / 40.0] * 8, "labels": (at + more) % 4} for at in range(40)]
    return "\n".join(map(json.dumps, made)).encode()


@pytest.mark.matrix
def test_a_killed_job_goes_on_with_the_same_bytes_or_not_at_all(system: System, store: FileServer) -> None:
    training = {"max_steps": 20, "logging_steps": 1, "save_strategy": "steps", "save_steps": 5, "seed": 7}
    spec: JSON = {"model": "toy/mlp", "data": f"{store.url}/rows.jsonl", "training": training}
    system.start()
    gate = system.gate()
    quiet = system.submit(spec)
    expected = system.until_settled(quiet)
    job = system.submit(spec, callbacks=[gate.at(12)])
    system.until_reached(job, gate, 12)
    system.until_checkpoint(job, 10)
    store.files["/rows.jsonl"] = rows(1)
    system.nodes[1].signal(signal.SIGKILL)
    system.nodes[1].wait(10)
    gate.open(12)
    system.start_node(2)

    done = system.until_settled(job)

    assert (expected["state"], done["state"], done["attempt"]) == ("succeeded", "succeeded", 2), done["error"]
    assert system.losses(job) == system.losses(quiet)
    assert system.final_weights(job) == system.final_weights(quiet)
    # Where the bytes are no longer kept, and others lie there: not a step is made with those.
    shutil.rmtree(system.folder / "stores")
    again = system.submit(spec, callbacks=[gate.at(13)])
    system.until_reached(again, gate, 13)
    system.do(again, "pause")
    gate.open(13)
    system.until_state(again, "paused")
    shutil.rmtree(system.folder / "stores")
    store.files["/rows.jsonl"] = rows(2)
    system.do(again, "resume")
    refused = system.until_settled(again)
    assert (refused["state"], refused["error"]["code"]) == ("failed", "dataset_changed")
    assert "is not what this job began with" in refused["error"]["message"]
