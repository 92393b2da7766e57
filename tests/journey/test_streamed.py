"""A dataset as a stream, through the whole server: a killed job goes on with the very next row."""

from __future__ import annotations

import signal

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, System, assert_whole

STREAMED: JSON = {
    "model": {"use": "toy/mlp", "args": {"dropout": 0.1}},
    "data": {
        "train": {"use": "hf/dataset", "args": {"path": "data://rows", "split": "train", "streaming": True}},
        "eval": {"use": "files/parquet", "args": {"paths": ["data://rows/test.parquet"], "streaming": True}},
        "map": [{"use": "rename", "args": {"columns": {"features": "x", "class": "labels"}}}],
    },
    "training": {
        "max_steps": 30, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "logging_steps": 1,
        "eval_strategy": "steps", "eval_steps": 15, "save_strategy": "steps", "save_steps": 5,
        "dataloader_num_workers": 2, "seed": 7,
    },
}  # fmt: skip


@pytest.fixture
def system(processes: Processes, redis: RedisServer, sqlite_url: str) -> System:
    return System(processes, redis, sqlite_url)


@pytest.mark.matrix
def test_a_killed_job_goes_on_in_mid_epoch_with_the_very_next_row(system: System) -> None:
    folder = system.folder / "data" / "rows"
    folder.mkdir(parents=True)
    for name, count in (("train-00000", 90), ("train-00001", 61), ("test", 20)):
        rows = [{"features": [at / 100.0 + place for place in range(8)], "class": at % 4} for at in range(count)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet", row_group_size=16)
    system.start()
    gate = system.gate()
    quiet = system.submit(STREAMED)
    expected = system.until_settled(quiet)
    job = system.submit(STREAMED, callbacks=[gate.at(12)])
    system.until_reached(job, gate, 12)
    system.until_checkpoint(job, 10)
    system.nodes[1].signal(signal.SIGKILL)
    system.nodes[1].wait(10)
    gate.open(12)
    system.start_node(2)

    done = system.until_settled(job)

    assert (expected["state"], done["state"], done["attempt"]) == ("succeeded", "succeeded", 2), done["error"]
    events = system.events(job)
    assert_whole(events)
    assert any("continues at step" in str(event["data"]) for event in events)
    assert system.losses(job) == system.losses(quiet)
    assert system.final_weights(job) == system.final_weights(quiet)
