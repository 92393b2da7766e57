"""Tests three nodes in network namespaces, with own addresses, a switch, and links that are cut.

The nodes share no loopback and no folder. Artifacts are in a bucket, and nodes reach control only through Redis.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.journey.test_several_nodes import ALONE, TOGETHER
from tests.support.processes import Processes, at_ease
from tests.support.redis_server import RedisServer
from tests.support.s3_server import S3Server
from tests.support.system import System, assert_whole

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

HERE = "10.213.78.254"
"""The address of the switch, at which nodes reach Redis and the bucket."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Switch:
    """A switch that connects the nodes with each other and with this machine."""

    def __init__(self, stack: ExitStack) -> None:
        self._name = f"fps{os.getpid() % 100_000}"
        stack.callback(self._remove, "link", "del", self._name)
        ip("link", "add", self._name, "type", "bridge")
        ip("addr", "add", f"{HERE}/24", "dev", self._name)
        ip("link", "set", self._name, "up")
        for number in (1, 2, 3):
            stack.callback(self._remove, "netns", "del", self.node(number))
            ip("netns", "add", self.node(number))
            ip("link", "add", self._port(number), "type", "veth", "peer", "name", "eth0", "netns", self.node(number))
            ip("link", "set", self._port(number), "master", self._name, "up")
            ip("-n", self.node(number), "addr", "add", f"10.213.78.{number}/24", "dev", "eth0")
            ip("-n", self.node(number), "link", "set", "eth0", "up")
            ip("-n", self.node(number), "link", "set", "lo", "up")

    def node(self, number: int) -> str:
        return f"{self._name}n{number}"

    def disconnect(self, number: int) -> None:
        """Cuts a node off without closing any connection."""
        ip("link", "set", self._port(number), "down")

    def plug_in(self, number: int) -> None:
        ip("link", "set", self._port(number), "up")

    def _port(self, number: int) -> str:
        return f"{self._name}p{number}"

    @staticmethod
    def _remove(*words: str) -> None:
        with suppress(subprocess.CalledProcessError):
            ip(*words)


@pytest.fixture
def switch() -> Iterator[Switch]:
    if shutil.which("ip") is None:
        pytest.skip("nodes are network namespaces, and there is no program `ip` here")
    with ExitStack() as stack:
        try:
            network_switch = Switch(stack)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"nodes are network namespaces, which cannot be made here: {error.stderr.strip()}")
        yield network_switch


@pytest.fixture
def system(switch: Switch, processes: Processes, sqlite_url: str) -> Iterator[System]:
    server = RedisServer().start("--bind", "127.0.0.1", HERE, "--protected-mode", "no")
    try:
        store = S3Server(processes, HERE).environment("network")
        system = System(processes, server, sqlite_url, **store)
        system.start_service()
        for number in (1, 2, 3):
            system.nodes[number] = processes.start(
                "ip", "netns", "exec", switch.node(number), sys.executable, "-m", "worker",
                name=f"node-{number}",
                env={
                    **system.environment,
                    "FOOTPLATE_REDIS": f"redis://{HERE}:{server.port}/0",
                    "FOOTPLATE_HOME": str(processes.folder / f"home-{number}"),
                    "FOOTPLATE_NODE_HOME": str(processes.folder / f"home-{number}" / "node"),
                    "FOOTPLATE_NODE_NAME": f"node-{number}",
                    "FOOTPLATE_SLOTS": "1",
                },
            )  # fmt: skip
        for number in (1, 2, 3):
            system.until_node_is_up(number)
        yield system
        processes.stop_all()
    finally:
        server.close()


@pytest.mark.matrix
def test_nodes_on_a_real_network_train_together_and_a_cut_off_node_is_lost(system: System, switch: Switch) -> None:
    job = system.submit(TOGETHER)
    other_job = system.submit(ALONE)
    system.until_checkpoint(job, 10, within=at_ease(90))
    first = system.job(job)["nodes"]
    cut = int(first[1].removeprefix("node-"))
    zombie = system.training_pids(job)

    switch.disconnect(cut)
    system.until(
        lambda: system.job(job)["attempt"] == 2, within=at_ease(90), what="the job has a second attempt", job=job
    )
    system.until_step(job, 40, within=at_ease(120))
    switch.plug_in(cut)
    final_job, expected = (system.until_settled(job_id, within=at_ease(200)) for job_id in (job, other_job))

    assert (final_job["state"], final_job["attempt"], expected["state"]) == ("succeeded", 2, "succeeded"), final_job[
        "error"
    ]
    assert system.losses(job) == pytest.approx(system.losses(other_job), rel=1e-4)
    lost_attempt, next_attempt = system.get(f"/jobs/{job}/attempts")["data"]
    assert (lost_attempt["reason"], lost_attempt["error"]["code"]) == ("node_lost", "node_lost")
    assert f"heartbeat from node-{cut}" in lost_attempt["error"]["message"]
    assert first[1] not in [node["name"] for node in next_attempt["nodes"]]
    what = "what ran on the node whose cable was pulled has ended"
    system.until(lambda: not set(zombie) & set(system.training_pids(job)), within=at_ease(60), what=what, job=job)
    assert_whole(system.events(job))

    system.until(
        lambda: system.node_is_up(cut), within=at_ease(60), what="the disconnected node takes work again", job=job
    )
    three = {**TOGETHER, "resources": {"nodes": 3}, "training": {**TOGETHER["training"], "max_steps": 20}}
    wide = system.submit(three)
    final_wide_job = system.until_settled(wide, within=at_ease(200))
    assert (final_wide_job["state"], final_wide_job["attempt"]) == ("succeeded", 1), final_wide_job["error"]
    events = system.events(wide)
    assert_whole(events)
    assert {event["source"] for event in events if event["kind"] == "done"} == {0, 1, 2}
