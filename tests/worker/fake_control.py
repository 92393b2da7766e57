"""A minimal control for tests of the worker, which grants, acknowledges and records."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import redis as redis_py
from celery import Celery
from kombu.entity import Exchange, Queue

from footplate.contract import redis_keys
from footplate.contract.ids import new_checkpoint_id, new_job_id
from footplate.contract.messages import (
    TO_CONTROL,
    AttemptBeat,
    AttemptReply,
    Claim,
    Command,
    Denial,
    Grant,
    NodeBeat,
    NodeReply,
    Stop,
)
from tests.support.factories import make_spec
from tests.support.processes import Process, Processes, tail, until

SEND_AGAIN_SECONDS = 1.0
LOOK_SECONDS = 0.02
"""The time between two looks for events while no message arrives. More looks would take CPU time from the node."""


class FakeControl(threading.Thread):
    """Grants each attempt to its first claim, and stores events as the service would in SQL."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.client = redis_py.Redis.from_url(url, socket_timeout=20)
        self.offers: dict[str, dict[str, Any]] = {}
        self.granted: dict[tuple[str, int], Claim] = {}
        self.beats: dict[str, AttemptBeat] = {}
        self.nodes: dict[str, NodeBeat] = {}
        self.troubles: set[str] = set()
        """Problems that heartbeats have reported."""
        self.events: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
        self.stops: dict[str, Stop] = {}
        self.commands: dict[str, Command] = {}
        self.dead: set[tuple[str, int]] = set()
        """Attempts whose supervisors died before they reported an end, according to the node's heartbeats."""
        self.catalogues: dict[str, dict[str, Any]] = {}
        self.acknowledges = True
        self.grants = True
        """False if claims get no answer, as while control is down."""
        self.unanswered: set[str] = set()
        """The jobs whose claims got no answer."""
        self.commits_checkpoints = True
        """True if replies name the newest checkpoint in SQL. Replies to a superseded attempt never do."""
        self.drains = False
        self.processes: Processes | None = None
        """Processes of the nodes. A wait fails with their logs once all of them have exited."""
        self._last_entry = "0"
        self._last_saved: dict[tuple[str, int], int] = {}
        """The newest step of each attempt that has a committed checkpoint."""
        self._sent: dict[tuple[str, int], tuple[str, float]] = {}
        self.pauses = threading.Event()
        self._ends = threading.Event()
        self.start()

    # Methods for tests

    def node(self, name: str | None = None, within: float = 30) -> NodeBeat:
        """Waits until a node (with this name) has sent a heartbeat, and returns its newest one."""

        def newest_beat() -> NodeBeat | None:
            return next((node for node in list(self.nodes.values()) if name in (None, node.name)), None)

        return until(newest_beat, within=within, what="a node sends a heartbeat", programs=self._programs())

    def submit(self, node: NodeBeat, job: str | None = None, attempt: int = 1, **grant: Any) -> str:
        """Offers an attempt and sends its start message. `grant` contains fields of the grant and of the spec."""
        job = job or new_job_id()
        of_grant = {name: grant.pop(name) for name in list(grant) if name in Grant.model_fields}
        spec = of_grant.pop("spec", None) or make_spec(**grant).as_json()
        self.offers[job] = {"attempt": attempt, "fence": attempt, "spec": spec, **of_grant}
        self.send_start_message(node.node, job, attempt)
        self._sent[job, attempt] = (node.node, time.monotonic())
        return job

    def send_start_message(self, node: str, job: str, attempt: int) -> None:
        app = Celery(broker=self.url, set_as_current=False)
        app.conf.task_create_missing_queues = False
        name = redis_keys.queue(node)  # type: ignore[arg-type]
        queue = Queue(name, Exchange(name, type="direct"), routing_key=name)
        app.conf.task_queues = [queue]
        kwargs = {"job": job, "attempt": attempt, "fence": attempt}
        with app.connection_for_write() as connection:
            app.send_task(redis_keys.TASK, kwargs=kwargs, queue=queue, connection=connection, ignore_result=True)

    def stop(self, job: str, because: str, mode: str = "checkpoint", within: float = 60.0) -> None:
        """Stops a job. The order is pushed at once, and repeated in the reply to every heartbeat."""
        self.stops[job] = Stop(because=because, mode=mode, within_seconds=within)  # type: ignore[arg-type]
        for (job_id, _), claim in list(self.granted.items()):
            if job_id == job:
                self._push(redis_keys.reply(claim.claim), AttemptReply(claim=claim.claim, stop=self.stops[job]))

    def ask(self, job: str, command: Command, times: int = 1) -> None:
        """Pushes a command at once, and repeats it in replies to heartbeats until the worker confirms it."""
        self.commands[job] = command
        for (job_id, _), claim in list(self.granted.items()):
            if job_id == job:
                for _ in range(times):
                    self._push(redis_keys.reply(claim.claim), AttemptReply(claim=claim.claim, commands=[command]))

    def of(self, job: str, kind: str | None = None, attempt: int = 1) -> list[dict[str, Any]]:
        """Returns the stored events of a job, in order."""
        events = dict(self.events.get((job, attempt), {}))
        return [event for _, event in sorted(events.items()) if kind in (None, event["kind"])]

    def done(self, job: str, attempt: int = 1, within: float = 30.0) -> dict[str, Any]:
        """Waits for the `done` event of a job, and returns its data. A timeout reports the last events of the job."""

        def done_events() -> list[dict[str, Any]]:
            events = self.of(job, "done", attempt)
            assert events or (job, attempt) not in self.dead, "\n".join(
                [f"the supervisor of {job} died, so it is never done", *(tail(item.log) for item in self._programs())]
            )
            return events

        try:
            result = until(done_events, within=within, what=f"{job} is done", programs=self._programs())
        except AssertionError as error:
            events = [(event["kind"], event.get("step")) for event in self.of(job, attempt=attempt)]
            beats = [beat for beat in self.beats.values() if beat.job == job]
            error.add_note(f"granted: {(job, attempt) in self.granted}; events: {events[-5:]}; last beats: {beats}")
            raise
        return dict(result[0]["data"])

    def await_kind(self, job: str, kind: str, count: int = 1, attempt: int = 1, within: float = 30.0) -> dict[str, Any]:
        what = f"{count} {kind} of {job}"
        return until(
            lambda: self.of(job, kind, attempt)[count - 1 :], within=within, what=what, programs=self._programs()
        )[0]

    def _programs(self) -> Sequence[Process]:
        return self.processes.programs if self.processes else ()

    def end(self) -> None:
        self._ends.set()
        self.join(60)

    # Methods of the thread

    def run(self) -> None:
        while not self._ends.is_set():
            try:
                self.client.set(redis_keys.EPOCH, "epoch", nx=True)
                if item := self.client.blpop([redis_keys.INBOX], timeout=LOOK_SECONDS):
                    self._handle(TO_CONTROL.validate_json(item[1]))
                if not self.pauses.is_set():
                    self._ingest()
                self._send_again()
            except (redis_py.RedisError, OSError):
                self._ends.wait(LOOK_SECONDS)

    def _send_again(self) -> None:
        """Repeats start messages of unclaimed attempts, because a node drops them while it cannot start training."""
        for (job, attempt), (node, at) in list(self._sent.items()):
            if (job, attempt) in self.granted:
                del self._sent[job, attempt]
            elif time.monotonic() - at > SEND_AGAIN_SECONDS:
                self._sent[job, attempt] = (node, time.monotonic())
                self.send_start_message(node, job, attempt)

    def _handle(self, message: Claim | AttemptBeat | NodeBeat) -> None:
        if isinstance(message, Claim):
            if self.grants:
                self._answer_claim(message)
            else:
                self.unanswered.add(message.job)
        elif isinstance(message, AttemptBeat):
            self.beats[message.claim] = message
            job = message.job
            reply = AttemptReply(
                claim=message.claim,
                number=message.number,
                stop=self.stops.get(job),
                commands=[new for new in [self.commands.get(job)] if new is not None and new.no > message.last_command],
                watermark=self._watermark(job, message.attempt) if self.acknowledges else 0,
                stored_step=self._stored_step(job, message.attempt),
            )
            self._push(redis_keys.reply(message.claim), reply)
        else:
            self.nodes[message.node] = message
            self.dead.update((entry.job, entry.attempt) for entry in message.dead)
            if message.trouble:
                self.troubles.add(message.trouble)
            if message.catalogue is not None and message.catalogue_hash is not None:
                self.catalogues[message.catalogue_hash] = message.catalogue
            names = message.catalogue_hash if message.catalogue_hash in self.catalogues else None
            reply = NodeReply(number=message.number, catalogue_known=names, drain=self.drains)
            self._push(redis_keys.node_reply(message.node, message.boot), reply)

    def _answer_claim(self, claim: Claim) -> None:
        offer = self.offers.get(claim.job)
        holder = self.granted.setdefault((claim.job, claim.attempt), claim)
        if offer is None or holder.claim != claim.claim:
            self._push(redis_keys.reply(claim.claim), Denial(claim=claim.claim, reason="somebody else has it"))
            return
        settings = {"lease_seconds": 10.0, "beat_seconds": 0.5, **offer}
        self._push(redis_keys.reply(claim.claim), Grant(job=claim.job, claim=claim.claim, **settings))

    def _push(self, key: str, message: Any) -> None:
        self.client.rpush(key, message.model_dump_json())

    def _ingest(self) -> None:
        answer = self.client.xread({redis_keys.EVENTS: self._last_entry}, count=64)
        if not answer:
            if not self.client.exists(redis_keys.EVENTS):
                self._last_entry = "0"
            return
        entries = answer[redis_keys.EVENTS.encode()][0] if isinstance(answer, dict) else answer[0][1]
        for entry, fields in entries:
            batch = json.loads(fields[b"batch"])
            stored_step = self.events.setdefault((batch["job"], batch["attempt"]), {})
            for event in batch["events"]:
                # The service stores events without gaps. An event after a gap will be sent again.
                if event["seq"] > len(stored_step) + 1:
                    break
                stored_step.setdefault(event["seq"], event)
                if event["kind"] == "checkpoint" and event["data"]["status"] == "committed":
                    last = self._last_saved.get((batch["job"], batch["attempt"]), 0)
                    self._last_saved[batch["job"], batch["attempt"]] = max(last, event["step"])
            self._last_entry = entry
            if self.acknowledges:
                mark = self._watermark(batch["job"], batch["attempt"])
                self.client.set(redis_keys.watermark(batch["job"], batch["attempt"], batch["source"]), mark)
                self.client.xdel(redis_keys.EVENTS, entry)
                stored_step = self._stored_step(batch["job"], batch["attempt"])
                self._push(
                    redis_keys.reply(batch["claim"]), AttemptReply(claim=batch["claim"], stored_step=stored_step)
                )

    def _watermark(self, job: str, attempt: int) -> int:
        # Stored events have no gap. A search for the largest number would take longer with every event.
        return len(self.events.get((job, attempt), ()))

    def _stored_step(self, job: str, attempt: int) -> int | None:
        return self._last_saved.get((job, attempt)) if self.acknowledges and self.commits_checkpoints else None


def offer_of(event: dict[str, Any]) -> dict[str, Any]:
    """Returns the checkpoint of a `checkpoint` event in the form in which a grant offers it."""
    data = event["data"]
    return {"id": new_checkpoint_id(), "step": event["step"], "path": data["path"],
            "manifest_sha256": data["manifest_sha256"]}  # fmt: skip
