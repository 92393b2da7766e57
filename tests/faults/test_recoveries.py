"""Checks that the history of a job explains every recovery: what happened, to what, and what was done.

docs/explanation/recoveries.md shows what this prints.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.chaos import Chaos
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, LONG_TOY, System

SENTENCES = {
    "its training is killed": [
        r"attempt \d+ ended: the training process was killed \(SIGKILL\).*; the next attempt starts in",
        r"attempt \d+ goes to node-1",
        r"continues at step \d+",
    ],
    "its supervisor is killed": [
        r"nothing after event \d+ of attempt \d+ had arrived when it was lost",
        r"attempt \d+ on node-1 was lost: the node reported that its supervisor died; the next attempt starts in",
        r"continues at step \d+",
    ],
    "Redis is away": [r"Redis did not answer for \d+ s: events were buffered on the node's disk"],
    "its newest checkpoint is torn": [
        r"attempt \d+ ended: the training process was killed",
        r"checkpoint-\d+.*(sha256|bytes|manifest)",
        r"continues at step \d+",
    ],
    "its supervisor is frozen": [
        r"attempt \d+ on node-1 was lost: no heartbeat from it for \d+ s; the next attempt starts in",
        r"attempt \d+ reported again after it was declared lost; it is stopped",
    ],
    "its node is drained": [
        r"node-1 is draining: the job saves a checkpoint and continues on another node",
        r"the node drains, so the job continues on another node; this uses up no retry",
        r"attempt \d+ goes to node-1",
        r"continues at step \d+",
    ],
}


class Story:
    """A job that meets one fault after another. Before each fault, training has saved since the last one."""

    def __init__(self, system: System, job: str) -> None:
        self.system, self.job = system, job
        self.chaos = Chaos(system, seed=0, between=(0, 0), postgres=None)
        self.last_no = 0

    def its_training_is_killed(self) -> None:
        self.system.kill_training(self.job)

    def its_supervisor_is_killed(self) -> None:
        (pid,) = self.chaos.supervisors()
        os.kill(pid, signal.SIGKILL)

    def redis_is_away(self) -> None:
        self.chaos.redis_away()

    def its_newest_checkpoint_is_torn(self) -> None:
        """Tears the newest recorded checkpoint and all later checkpoints, while training is frozen."""
        for pid in self.system.training_pids(self.job)[:1]:
            os.kill(pid, signal.SIGSTOP)
        newest = self.system.folder / "artifacts" / self.checkpoints()[0]["path"]
        for folder in newest.parent.glob("checkpoint-*"):
            if step_of(folder) >= step_of(newest):
                file = folder / "model.safetensors"
                file.write_bytes(file.read_bytes()[:-1])
        self.system.kill_training(self.job)

    def its_supervisor_is_frozen(self) -> None:
        assert self.chaos.supervisor_frozen()

    def its_node_is_drained(self) -> None:
        (node,) = self.system.get("/nodes")["data"]
        assert self.system.client.post(f"/nodes/{node['id']}/drain").status_code == 202
        self.system.until_state(self.job, "queued")
        assert self.system.client.post(f"/nodes/{node['id']}/drain", json={"drain": False}).status_code == 202

    def until_it_saves_again(self) -> None:
        """Waits until training commits a checkpoint that did not exist at the call."""
        names = {checkpoint["id"] for checkpoint in self.checkpoints()}
        self.system.until(
            lambda: {checkpoint["id"] for checkpoint in self.checkpoints()} - names,
            within=60,
            what="the job has a new checkpoint",
            job=self.job,
        )

    def checkpoints(self) -> list[JSON]:
        return [row for row in self.system.get(f"/jobs/{self.job}/checkpoints")["data"] if row["status"] == "committed"]

    def until_reported(self, sentences: list[str]) -> None:
        """Waits for these sentences in this order, after those that were read before."""
        self.system.until(lambda: self._found(sentences), within=60, what=f"events have {sentences}", job=self.job)

    def _found(self, sentences: list[str]) -> bool:
        after, remaining = self.last_no, list(sentences)
        for event in self.system.events(self.job)[self.last_no :]:
            if remaining and re.search(remaining[0], message_of(event)):
                remaining, after = remaining[1:], event["no"]
        if not remaining:
            self.last_no = after
        return not remaining


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("checkpoint-"))


def message_of(event: JSON) -> str:
    data = event["data"]
    error = (data.get("error") or {}).get("message") or ""
    return str(data.get("message") or error)


def is_turn(event: JSON) -> bool:
    return event["kind"] in ("state", "done")


def as_line(event: JSON) -> str:
    data = event["data"]
    what = " ".join(str(data[name]) for name in ("state", "reason", "status", "ending") if data.get(name))
    message = f"`{message_of(event)}`" if message_of(event) else ""
    return f"| {event['no']} | {event['attempt']} | {event['kind']} | {what} | {message} |"


@pytest.mark.matrix
def test_every_recovery_is_shown_by_an_event(processes: Processes, redis: RedisServer, sqlite_url: str) -> None:
    system = System(processes, redis, sqlite_url).start()
    training = {**LONG_TOY["training"], "max_steps": 100_000, "save_steps": 5, "save_total_limit": 3}
    job = system.submit(training=training, retry={"max_attempts": 100})
    story = Story(system, job)

    for fault, sentences in SENTENCES.items():
        story.until_it_saves_again()
        begun = story.last_no
        act: Callable[[], None] = getattr(story, fault.lower().replace(" ", "_"))
        act()
        story.until_reported(sentences)
        print(f"\n### {fault}\n")
        print("\n".join(as_line(event) for event in system.events(job)[begun:] if message_of(event) or is_turn(event)))

    assert system.do(job, "cancel", {"mode": "kill"}).status_code == 202
    system.until_state(job, "cancelled")
    silent = [event for event in system.events(job) if event["kind"] in ("note", "gap") and not message_of(event)]
    assert silent == [], json.dumps(silent)
