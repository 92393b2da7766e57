"""Steps of tests, each of which is one real transaction: nodes report, users submit, workers claim and send events.

Tests of tests/conformance call them one by one. The users of the seeded simulation call the same steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection

from footplate.contract.events import CheckpointData, DoneData, Kind
from footplate.contract.ids import ClaimId, Fence, JobId, NodeId, new_claim_id, new_job_id, new_node_id
from footplate.contract.layout import checkpoint_folder
from footplate.contract.lifecycle import StopMode
from footplate.contract.messages import (
    AttemptBeat,
    AttemptReply,
    Claim,
    Denial,
    EventBatch,
    Gpu,
    Grant,
    NodeBeat,
    NodeReply,
)
from footplate.contract.spec import JobSpec
from service.events.changes import IngestEffects
from service.events.entries import ParsedEntries, read_entries
from service.events.ingest import ingest
from service.jobs.amend import amend, delete
from service.jobs.beat import attempt_beat, node_beat
from service.jobs.conclude import Effects
from service.jobs.inbox import grant
from service.jobs.place import plan_queue, start
from service.jobs.rescue import RescueEffects, Timers, rescue, stop_left
from service.jobs.resume import NO_CHANGES, Resume, resume
from service.jobs.stopping import cancel, pause
from service.jobs.submit import IdempotencyUse, Submission, Submitted
from service.settings import ServiceSettings
from service.store import attempts, events, jobs, queue
from service.store.database import Database
from service.store.row_types import EventRow, JobRow, SourceRow
from service.store.times import text_of
from tests.support.factories import WorkerEvent, make_spec

T = TypeVar("T")
SETTINGS = ServiceSettings(retry_backoff_seconds=0)


def place_waiting(conn: Connection, now: int) -> list[JobId]:
    """Runs one turn of control's placement in one transaction."""
    while queue.make_due_jobs_ready(conn, now):
        pass
    result = plan_queue(conn)
    started_ids = start(conn, result.placements, now)
    queue.explain(conn, result.new_waits, result.removed_shapes)
    return started_ids


class Stage:
    """Runs the transactions of users, nodes and control. Only `later` advances the wall clock and control's clock."""

    now: int
    """Milliseconds of the wall clock."""

    def __init__(self, db: Database, settings: ServiceSettings = SETTINGS) -> None:
        self.db, self.settings = db, settings
        self.now = 1_800_000_000_000
        self.clock = 1000.0
        self.timers = Timers()
        self.beats = 0

    def write(self, fn: Callable[[Connection], T]) -> T:
        return self.db.write_now(fn)

    def read(self, fn: Callable[[Connection], T]) -> T:
        return self.db.read_now(fn)

    def later(self, seconds: float) -> None:
        self.now += round(seconds * 1000)
        self.clock += seconds

    # The user ------------------------------------------------------------------------------------------------------

    def submit(self, **changes: Any) -> JobId:
        return self.submitted(None, **changes).job.id

    def submitted(
        self, key: str | None, body: str = "body", project: str = "default", nodes: int = 1, **changes: Any
    ) -> Submitted:
        if nodes > 1:
            changes["resources"] = {**changes.get("resources", {}), "nodes": nodes}
        spec = make_spec(**changes)
        return self.submit_spec(spec, json.dumps(spec.as_json()), new_job_id(), key, body, project)

    def submit_spec(
        self, spec: JobSpec, text: str, job_id: JobId, key: str | None, body: str = "body", project: str = "default"
    ) -> Submitted:
        use = IdempotencyUse(key, body, respond=lambda job: f"made {job.id}") if key else None
        return self.write(
            Submission(project=project, spec=spec, spec_json=text, now=self.now, job_id=job_id, idempotency=use)
        )

    def cancel(self, job: JobId, mode: StopMode = StopMode.CHECKPOINT) -> JobRow:
        within = self.settings.stop_seconds
        return self.write(lambda conn: cancel(conn, "default", job, mode, self.now, stop_seconds=within))

    def pause(self, job: JobId) -> JobRow:
        within = self.settings.stop_seconds
        return self.write(lambda conn: pause(conn, "default", job, self.now, stop_seconds=within))

    def delete(self, job: JobId) -> None:
        self.write(lambda conn: delete(conn, "default", job, self.now))

    def amend(self, job: JobId, changes: dict[str, Any]) -> JobRow:
        return self.write(lambda conn: amend(conn, "default", job, changes, self.now))

    def resume(self, job: JobId, changes: Resume = NO_CHANGES) -> JobRow:
        return self.write(lambda conn: resume(conn, "default", job, changes, self.now))

    def job(self, job: JobId) -> JobRow:
        return self.read(lambda conn: jobs.get(conn, "default", job))

    def events(self, job: JobId, kinds: list[str] | None = None) -> list[EventRow]:
        return self.read(lambda conn: events.after(conn, job, 0, 100_000, kinds))

    def states(self, job: JobId) -> list[str]:
        """Returns the states in the job's history, in order."""
        return [json.loads(event.data)["state"] for event in self.events(job, ["state"])]

    def sources(self, job: JobId) -> list[SourceRow]:
        row = self.job(job)
        return self.read(lambda conn: attempts.sources_of(conn, job, row.attempt))

    # Control and nodes ---------------------------------------------------------------------------------------------

    def node(
        self,
        node: NodeId | None = None,
        boot: str = "boot-1",
        slots: int = 4,
        gpus: list[Gpu] | None = None,
        **says: Any,
    ) -> NodeId:
        node = node or new_node_id()
        self.beat_node(node, boot, slots, gpus, **says)
        return node

    def beat_node(
        self,
        node: NodeId,
        boot: str = "boot-1",
        slots: int = 4,
        gpus: list[Gpu] | None = None,
        effects: Effects | None = None,
        **says: Any,
    ) -> NodeReply:
        self.beats += 1
        beat = NodeBeat(node=node, boot=boot, number=self.beats, name=node[-6:], slots=slots, gpus=gpus or [], **says)
        return self.write(lambda conn: node_beat(conn, beat, self.now, self.settings, effects or Effects()))

    def place(self) -> list[JobId]:
        return self.write(lambda conn: place_waiting(conn, self.now))

    def stop_left(self, job: JobRow) -> float:
        return stop_left(job, self.timers, self.clock, self.settings)

    def rescue(self) -> RescueEffects:
        return self.write(lambda conn: rescue(conn, self.timers, self.clock, self.now, self.settings))

    # A worker ------------------------------------------------------------------------------------------------------

    def claim(self, job: JobId, source: int = 0, claim: ClaimId | None = None) -> Worker:
        """Claims the job's current attempt, and asserts that the claim was granted."""
        worker = self.ask(job, source, claim)
        assert isinstance(worker.answer, Grant), worker.answer
        return worker

    def ask(self, job: JobId, source: int = 0, claim: ClaimId | None = None) -> Worker:
        row = self.job(job)
        parts = self.sources(job)
        part = parts[source] if source < len(parts) else None
        return Worker(
            self, job, row.attempt, row.fence, claim or new_claim_id(), source, part.node if part else NodeId("node_x"),
            part.boot if part else "boot-1",
        )  # fmt: skip

    def running(self, **changes: Any) -> tuple[JobId, Worker]:
        """Starts a job on a new node, and returns the job and its worker."""
        self.node()
        job = self.submit(**changes)
        assert self.place() == [job]
        worker = self.claim(job)
        worker.says_running()
        return job, worker


class Worker:
    """A simulated worker, with one claim and its journal."""

    def __init__(
        self, stage: Stage, job: JobId, attempt: int, fence: Fence, claim: ClaimId, source: int, node: NodeId, boot: str
    ) -> None:
        self.stage, self.job, self.attempt, self.fence = stage, job, attempt, fence
        self.claim, self.source, self.node, self.boot = claim, source, node, boot
        self.journal: list[WorkerEvent] = []
        self.number = self.last_command = 0
        self.answer = self.ask_again()

    def claim_message(self) -> Claim:
        return Claim(
            job=self.job, attempt=self.attempt, fence=self.fence, claim=self.claim, node=self.node, boot=self.boot,
            rendezvous=f"10.0.0.{self.source + 1}:29500",
        )  # fmt: skip

    def ask_again(self) -> Grant | Denial:
        message = self.claim_message()
        return self.stage.write(lambda conn: grant(conn, message, self.stage.now, self.stage.settings))

    def beat(self) -> AttemptReply:
        self.number += 1
        beat = AttemptBeat(
            job=self.job, attempt=self.attempt, fence=self.fence, claim=self.claim, source=self.source,
            number=self.number, last_command=self.last_command,
        )  # fmt: skip
        reply = self.stage.write(lambda conn: attempt_beat(conn, beat, self.stage.now, self.stage.stop_left))
        if not reply.superseded:
            self.stage.timers.renew(("lease", self.job, self.attempt, self.source), self.number, self.stage.clock)
        return reply

    def write(self, kind: Kind, data: dict[str, Any], step: int | None = None) -> WorkerEvent:
        """Writes an event into the journal. `send` sends it."""
        event = WorkerEvent(seq=len(self.journal) + 1, kind=kind, at=text_of(self.stage.now), step=step, data=data)
        self.journal.append(event)
        return event

    def send(self, *chosen: WorkerEvent) -> IngestEffects:
        """Sends the chosen events, or the whole journal, as one entry of the stream."""
        return self.stage.write(self._ingest([self.entry(*chosen)]))

    def send_entries(self, entries: list[bytes]) -> IngestEffects:
        return self.stage.write(self._ingest(entries))

    def entry(self, *chosen: WorkerEvent) -> bytes:
        batch = EventBatch(
            job=self.job, attempt=self.attempt, fence=self.fence, claim=self.claim, source=self.source,
            events=[event.model_dump(mode="json") for event in chosen or self.journal],
        )  # fmt: skip
        return batch.model_dump_json().encode()

    def _ingest(self, entries: list[bytes]) -> Callable[[Connection], IngestEffects]:
        parsed_entries: ParsedEntries = read_entries(entries, text_of(self.stage.now))
        return lambda conn: ingest(conn, parsed_entries, self.stage.now, retry_backoff_seconds=0)

    def says_running(self) -> IngestEffects:
        return self.send(self.write(Kind.STATE, {"state": "running"}))

    def logs(self, step: int, **values: float) -> IngestEffects:
        return self.send(self.write(Kind.LOG, values or {"loss": 1.0}, step))

    def checkpoints(self, step: int, **says: Any) -> IngestEffects:
        path = str(checkpoint_folder(self.job, self.attempt, step))
        data = CheckpointData(**{"status": "committed", "path": path, **says})
        return self.send(self.write(Kind.CHECKPOINT, data.model_dump(mode="json"), step))

    def ends(self, ending: str, reason: str = "completed", **says: Any) -> IngestEffects:
        data = DoneData(**{"ending": ending, "reason": reason, "running_s": 1.0, **says})
        return self.send(self.write(Kind.DONE, data.model_dump(mode="json")))

    def finishes(self) -> IngestEffects:
        return self.ends("finished")

    def stops(self) -> IngestEffects:
        return self.ends("stopped", "cancel")

    def fails(self, reason: str = "crashed") -> IngestEffects:
        return self.ends("failed", reason, error={"code": reason, "message": f"it {reason}"})
