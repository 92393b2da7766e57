"""One attempt from its bell to its `done`, through real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.processes import Process, until
from tests.worker.fake_control import FakeControl

StartNode = Callable[..., Process]


def test_a_job_trains_and_tells_what_happens(start_node: StartNode, control: FakeControl, tmp_path: Path) -> None:
    start_node()
    node = control.node()

    job = control.submit(node, training={"max_steps": 20, "logging_steps": 5})

    done = control.done(job, within=60)
    assert (done["ending"], done["reason"], done["error"]) == ("finished", "completed", None)
    assert done["result"]["steps"] == 20
    assert [event["seq"] for event in control.of(job)] == list(range(1, len(control.of(job)) + 1))
    assert control.of(job)[0]["data"] == {"state": "running"}
    assert [event["step"] for event in control.of(job, "log") if "loss" in event["data"]] == [5, 10, 15, 20]
    assert control.of(job, "progress")[-1]["data"]["step"] == 20
    outputs = tmp_path / "artifacts" / done["outputs"]
    assert {"model.safetensors", "metrics.json", "spec.json"} <= {path.name for path in outputs.iterdir()}
    until(lambda: not list((tmp_path / "node-1/journals").iterdir()), what="the acknowledged journal is gone")
