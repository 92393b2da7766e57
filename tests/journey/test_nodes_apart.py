"""Tests jobs on two nodes that share no folder. Each node has a private disk, and artifacts are in a bucket.

Every kind of job runs there, and continues on other nodes after a node is lost together with its disk.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.examples.conftest import EXAMPLES, Examples, code_of
from tests.support.apart import require_apart, without
from tests.support.gates import Gate
from tests.support.processes import Processes, at_ease, nothing_is_left_behind
from tests.support.redis_server import RedisServer
from tests.support.s3_server import S3Server
from tests.support.system import JSON, System, assert_whole

pytestmark = pytest.mark.timeout(900)

WHOLE: JSON = {
    "model": {"use": "toy/mlp", "args": {"hidden": 32, "dropout": 0.1}},
    "data": {
        "train": {"use": "toy/classification", "args": {"n": 256}},
        "eval": {"use": "toy/classification", "args": {"n": 50, "seed": 1}},
    },
    "training": {
        "max_steps": 40, "per_device_train_batch_size": 8, "learning_rate": 0.01, "logging_steps": 1, "seed": 7,
        "save_strategy": "steps", "save_steps": 10, "eval_strategy": "steps", "eval_steps": 10,
        "load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True,
    },
    "resources": {"nodes": 2, "gpus_per_node": 0, "strategy": {"type": "fsdp", "config": {"min_num_params": 500}}},
}  # fmt: skip
"""The metric makes the first checkpoint the best one, so that a checkpoint of the lost attempt is loaded at the end."""


def with_strategy(kind: str, **config: object) -> JSON:
    return {**WHOLE, "resources": {**WHOLE["resources"], "strategy": {"type": kind, "config": config}}}


IN_PIECES = with_strategy("fsdp", min_num_params=500, state_dict_type="SHARDED_STATE_DICT")
ZERO = with_strategy("deepspeed", train_batch_size="auto", gradient_clipping="auto", zero_optimization={"stage": 2})


class Nodes:
    """Nodes that each take one part of a job. A lost node is replaced by a new node with an empty disk."""

    def __init__(self, system: System) -> None:
        self.system = system
        for _ in range(3):
            self.start(wait=False)
        for number in system.nodes:
            system.until_node_is_up(number)

    def start(self, *, wait: bool = True) -> None:
        disk = self.system.processes.folder / "disk"
        disk.mkdir(exist_ok=True)
        number = len(self.system.nodes) + 1
        own = {"FOOTPLATE_NODE_HOME": str(disk / "node")}
        self.system.start_node(number, wait=wait, before=without(disk), **own)

    def lose_node(self, job: str, which: int) -> None:
        """Kills a node of the job without any clean-up, waits for the next attempt, and starts a new node."""
        node_number = int(self.system.job(job)["nodes"][which].removeprefix("node-"))
        self.system.nodes[node_number].signal(signal.SIGKILL)
        self.system.until(
            lambda: self.system.job(job)["attempt"] == 2, within=60, what="the job has a second attempt", job=job
        )
        self.start(wait=False)


@pytest.fixture(scope="module")
def nodes(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    require_apart()
    folder = tmp_path_factory.mktemp("apart")
    with ExitStack() as stack:
        stack.callback(nothing_is_left_behind, folder)
        stack.callback((redis := RedisServer().start()).close)
        stack.callback((processes := Processes(folder)).stop_all)
        settings = {"FOOTPLATE_CODE": "on", **s3.environment("apart")}
        system = System(processes, redis, f"sqlite:///{folder}/footplate.db", **settings)
        system.start_service()
        yield Nodes(system)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(WHOLE, id="fsdp", marks=pytest.mark.soak),
        pytest.param(IN_PIECES, id="fsdp in pieces"),
        pytest.param(ZERO, id="deepspeed", marks=pytest.mark.soak),  # compiles for minutes on each node
    ],
)
@pytest.mark.matrix
def test_a_sharded_model_continues_bit_equal_on_other_nodes(nodes: Nodes, spec: JSON) -> None:
    system, gate = nodes.system, nodes.system.gate()
    quiet = system.submit(spec)
    expected = system.until_settled(quiet, within=at_ease(2400 if spec is ZERO else 200))
    job = system.submit(spec, callbacks=[gate.at(25)])
    until_held(system, job, gate)

    nodes.lose_node(job, 1)
    final_job = system.until_settled(job, within=at_ease(2400 if spec is ZERO else 200))

    assert (expected["state"], expected["attempt"]) == ("succeeded", 1), expected["error"]
    assert (final_job["state"], final_job["attempt"]) == ("succeeded", 2), final_job["error"]
    assert system.losses(job) == system.losses(quiet)
    assert system.final_weights(job) == system.final_weights(quiet)
    assert final_job["result"]["best"]["step"] == 10, "only the lost attempt had step 10"
    events = system.events(job)
    assert_whole(events)
    first = next(event["step"] for event in events if event["kind"] == "log" and event["attempt"] == 2)
    assert first == 21, "the attempt must continue from a checkpoint of both nodes"


def until_held(system: System, job: str, gate: Gate) -> None:
    system.until_reached(job, gate, 25)
    system.until_checkpoint(job, 20, within=60)


HELD = """
import time
from pathlib import Path

import my_code


def main(job, gates, steps, **args):
    def held(values, *, step, epoch):
        log(values, step=step, epoch=epoch)
        gate = Path(gates, f"{step}.{job.accelerator.process_index}")
        if step in steps and not gate.exists():
            gate.touch()
            while not job.should_stop:
                time.sleep(0.05)

    log, job.log = job.log, held
    return my_code.main(job, **args)
"""
"""The code of a loop that waits once at each of these steps, until it is killed or stopped."""


@pytest.mark.matrix
def test_an_own_loop_continues_on_other_nodes_as_if_undisturbed(nodes: Nodes) -> None:
    """The first node, which wrote the checkpoint, is lost. The next attempt is paused and resumed."""
    system, examples = nodes.system, Examples(nodes.system)
    spec = examples.with_code("own-loop/job.json", resources={"nodes": 2})
    quiet = system.submit({**spec, "loop": {"use": "my_code:main", "args": {"epochs": 12}}})
    assert examples.ended(quiet)["state"] == "succeeded"
    gates = system.processes.folder / "gates"
    gates.mkdir()
    loop = {"use": "held:main", "args": {"epochs": 12, "gates": str(gates), "steps": [4, 6]}}
    job = system.submit(
        {
            **spec,
            "loop": loop,
            "code": {"bundle": system.upload(code_of(EXAMPLES / "own-loop") | {"held.py": HELD.encode()})},
        }
    )
    system.until((gates / "4.1").exists, within=at_ease(60), what="the script is held at step 4", job=job)
    system.until_checkpoint(job, 2, within=at_ease(60))

    nodes.lose_node(job, 0)
    system.until((gates / "6.1").exists, within=at_ease(90), what="the second attempt is held at step 6", job=job)
    assert system.do(job, "pause").status_code == 202
    paused = system.until_state(job, "paused", "succeeded", within=at_ease(60))
    system.do(job, "resume")
    final_job = examples.ended(job)

    assert (paused["state"], final_job["state"], final_job["attempt"]) == ("paused", "succeeded", 3), final_job["error"]
    assert system.losses(job) == system.losses(quiet)
    assert sorted(system.losses(job)) == list(range(1, 13))
    assert_whole(system.events(job))
    assert {"model.pt", "spec.json", "metrics.json"} <= examples.outputs(job).keys()


@pytest.mark.matrix
def test_a_retried_script_has_the_files_of_all_nodes_on_every_node(nodes: Nodes) -> None:
    """Each process saves its own random generators. The process that dies is on the second node."""
    system, examples = nodes.system, Examples(nodes.system)
    script = {"script": "train.py", "argv": ["--steps", "30", "--fail-at", "25"]}
    spec = examples.with_code("own-loop/script.json", loop=script, resources={"nodes": 2})
    job = system.submit({**spec, "retry": {"on": ["crashed"]}})
    final_job = examples.ended(job)

    assert (final_job["state"], final_job["attempt"]) == ("succeeded", 2), final_job["error"]
    first = system.get(f"/jobs/{job}/attempts")["data"][0]
    assert first["error"]["rank"] == 1
    assert "sys.exit(3)" in first["error"]["message"]
    lines = [str(event["data"]) for event in system.events(job) if event["kind"] == "line"]
    assert sum("continues at step 20" in line for line in lines) == 2, "on each node"
    assert not any("Could not load random states" in line for line in lines)
    assert_whole(system.events(job))
