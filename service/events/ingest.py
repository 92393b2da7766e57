"""Moves events from Redis to SQL, once each and in order, and then acknowledges them to their journals.

Each event is stored exactly once, because no seq is skipped. For every source, SQL keeps the watermark, up to which all
events are stored. The next event to store has the seq watermark + 1. An event with a lower seq is a duplicate. An event
with a higher seq is not stored: its journal keeps all events above the watermark and sends them again.

There is no consumer group. Control reads from the beginning of the stream, and deletes entries after the commit. So an
entry in the stream is either not in SQL yet, or a duplicate. A group would store in Redis which entries were read, and
Redis may lose all data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection

from footplate.contract.crash_points import Moment, reached
from footplate.contract.events import (
    METRIC_KINDS,
    SERVICE_SOURCE,
    CheckpointData,
    DoData,
    DoneData,
    Kind,
    ProgressData,
    SystemData,
    json_safe,
)
from footplate.contract.ids import ClaimId, JobId, new_checkpoint_id
from footplate.contract.layout import attempt_folder, job_folder
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.messages import AttemptReply
from service.events import curves
from service.events.entries import Batch, Incoming, Read
from service.events.row_limits import LEFT_OUT, failure_of, latest, result_of
from service.jobs import multi_node
from service.jobs.beat import holds
from service.jobs.conclude import Effects, End, conclude
from service.jobs.prune import rotate
from service.store import attempts, checkpoints, commands, events, jobs, nodes
from service.store.rows import CheckpointRow, EventRow, JobRow, SourceRow, loads
from service.store.times import text_of


@dataclass(slots=True)
class Ingested(Effects):
    """The results of one transaction, and the replies to send."""

    stored: int = 0
    duplicate: int = 0
    ahead: int = 0
    late: int = 0
    """Events that were acknowledged and dropped, because the job has ended."""
    stale: int = 0
    """Events from a supervisor that no longer holds the attempt."""
    dead: int = 0
    gaps: int = 0
    refused: int = 0
    """Checkpoints that are corrupt, or that name another job's files."""
    closed: int = 0
    """The number of attempts that ended."""
    watermarks: dict[tuple[JobId, int, int], int] = field(default_factory=dict)
    replies: dict[ClaimId, AttemptReply] = field(default_factory=dict)


def ingest(
    conn: Connection, read: Read, now: int, *, retry_backoff_seconds: float, service_frees: bool = False
) -> Ingested:
    """Stores parsed events in one transaction. The jobs' locks are held until the commit, so `no` is in commit order.

    With `service_frees`, control deletes the folders of checkpoints that training no longer keeps. Otherwise the node
    has deleted them before it reported that.
    """
    done = Ingested()
    wanted = {batch.job for batch in read.batches}
    held = jobs.lock_many(conn, wanted)
    sources = attempts.sources_of_many(conn, held)
    rotated_status = checkpoints.DELETING if service_frees else checkpoints.DELETED
    ledgers = {
        job_id: _Ledger(job, now, _now_of(job, sources.values()), rotated_status) for job_id, job in held.items()
    }
    for batch in read.batches:
        key = (batch.job, batch.attempt, batch.source)
        source = sources.get(key)
        if source is None and batch.events:
            # The job was deleted. Without a watermark, a dead attempt's journal would be sent again and again.
            done.watermarks[key] = max(done.watermarks.get(key, 0), batch.events[-1].seq)
        if source is None or source.claim != batch.claim:
            done.stale += len(batch.events)
            done.replies[batch.claim] = AttemptReply(claim=batch.claim, superseded=True, closed=True)
        else:
            ledgers[batch.job].take(batch, source, done)
    events.insert_many(conn, [row for ledger in ledgers.values() for row in ledger.rows])
    curves.keep(conn, {job: ledger.points for job, ledger in ledgers.items()})
    for ledger in ledgers.values():
        ledger.flush(conn, done, retry_backoff_seconds)
    for reason, raw in read.dead:
        events.insert_dead(conn, reason, raw, now)
    done.dead += len(read.dead)
    reached(Moment.BEFORE_INGEST_COMMITS)
    if done.closed:
        reached(Moment.BEFORE_CLOSE_COMMITS)
    return done


@dataclass(slots=True)
class _Page:
    """The new events of one source, and its watermark after them."""

    source: SourceRow
    is_current: bool
    watermark: int
    is_running: bool = False
    end: DoneData | None = None

    @property
    def is_done(self) -> bool:
        return self.source.done is not None or self.end is not None


class _Ledger:
    """The changes of one transaction to one job."""

    def __init__(self, job: JobRow, now: int, sources: Sequence[SourceRow], rotated_status: str) -> None:
        """Takes the current attempt's `sources`, and the status to store for checkpoints that training drops."""
        self.job, self.now, self.sources, self.rotated_status = job, now, sources, rotated_status
        self.no = job.last_no
        self.rows: list[EventRow] = []
        self.points = curves.Gathered()
        self.pages: dict[tuple[int, int], _Page] = {}
        self.progress: str | None = None
        self.running_ms = 0
        self.metrics: dict[str, Any] = {}
        self.committed: list[CheckpointRow] = []
        self.marks: list[tuple[list[str], str]] = []
        self.healed: list[str] = []
        self.done_commands: list[tuple[int, DoData]] = []
        """The commands that were carried out, each with the step after which the loop carried it out."""
        self.troubles: list[tuple[str, str]] = []

    def take(self, batch: Batch, source: SourceRow, done: Ingested) -> None:
        page = self.pages.get((source.attempt, source.source))
        if page is None:
            current = holds(self.job, source, batch.attempt, batch.fence, batch.claim)
            page = self.pages[source.attempt, source.source] = _Page(source, current, source.watermark)
        if batch.first > page.watermark + 1:
            self._declare_gap(page, batch.first - 1)
        for event in batch.events:
            if event.seq <= page.watermark:
                done.duplicate += 1
            elif event.seq > page.watermark + 1:
                done.ahead += 1
            elif page.is_done:
                done.stale += 1
            else:
                page.watermark = event.seq
                self._keep(event, page, done)
        done.watermarks[self.job.id, source.attempt, source.source] = page.watermark

    def _declare_gap(self, page: _Page, last: int) -> None:
        """Writes a gap event for events that neither SQL nor the journal has, and moves the watermark after them."""
        source, first, page.watermark = page.source, page.watermark + 1, last
        if self.job.state.is_terminal:
            return
        self.no += 1
        text = f"events {first} to {last} of attempt {source.attempt} are lost: the node's journal has no more of them"
        data = {"message": text, "source": source.source, "from": first, "to": last, "reason": "not_in_journal"}
        self.rows.append(
            EventRow(
                self.job.id, self.no, source.attempt, SERVICE_SOURCE, self.no, 0, Kind.GAP.value, text_of(self.now),
                None, None, json.dumps(data),
            )
        )  # fmt: skip

    def _keep(self, event: Incoming, page: _Page, done: Ingested) -> None:
        if self.job.state.is_terminal:
            done.late += 1
        else:
            self.no += 1
            done.stored += 1
            source = page.source
            kind, text = event.kind, event.text
            if kind == Kind.STATE and not self._reports_running(event, page):
                # A state that the job does not enter is stored as a note, so that `state` events match the job's row.
                kind, text = Kind.NOTE.value, json.dumps({"message": self._note_text(event, source)})
            elif kind == Kind.GAP:
                done.gaps += 1
            self.rows.append(
                EventRow(
                    self.job.id, self.no, source.attempt, source.source, event.seq, event.rank, kind, event.at,
                    event.step, event.epoch, text,
                )
            )  # fmt: skip
            if kind in METRIC_KINDS and event.data:
                self.points.take(source.attempt, self.no, event.at, event.step, event.epoch, event.data)
        if event.data is not None:
            try:
                self._apply(event, event.data, page)
            except ValidationError as error:
                self.troubles.append((f"{event.kind} {event.seq} of {self.job.id}: {error}", event.text))

    def _reports_running(self, event: Incoming, page: _Page) -> bool:
        is_running = event.data is not None and event.data.get("state") == JobState.RUNNING
        runs = is_running and page.is_current and self.job.state in (JobState.STARTING, JobState.RUNNING)
        # If a job has several nodes, only the event of the last node becomes a `state` event.
        return runs and all(self._runs(source) for source in self.sources if source.source != page.source.source)

    def _runs(self, source: SourceRow) -> bool:
        page = self.pages.get((source.attempt, source.source))
        return source.running_at is not None or (page is not None and page.is_running)

    def _note_text(self, event: Incoming, source: SourceRow) -> str:
        reported = str((event.data or {}).get("state"))[:100]
        where = f" on node {source.source + 1} of {len(self.sources)}" if len(self.sources) > 1 else ""
        return f"attempt {source.attempt} reports that it is {reported}{where}"

    def _apply(self, event: Incoming, data: dict[str, Any], page: _Page) -> None:
        """Collects what an event changes in its job, such as progress, metrics, checkpoints or the end of an attempt.

        If the source no longer holds the attempt, only its end (`done`) is collected.
        """
        if event.kind == Kind.DONE:
            page.end = self._end(event, DoneData.model_validate(data), page.source)
        elif not page.is_current:
            return
        elif event.kind in (Kind.LOG, Kind.EVAL):
            self.metrics.update(data)
        elif event.kind == Kind.PROGRESS:
            self.progress = ProgressData.model_validate(data).model_dump_json()
        elif event.kind == Kind.SYSTEM:
            self.running_ms = max(self.running_ms, round(SystemData.model_validate(data).running_s * 1000))
        elif event.kind == Kind.DO:
            command = DoData.model_validate(data)
            if command.status == "done":
                self.done_commands.append((event.step or 0, command))
        elif event.kind == Kind.CHECKPOINT:
            self._checkpoint(event, CheckpointData.model_validate(data), page.source)
        elif event.kind == Kind.STATE and data.get("state") == JobState.RUNNING:
            page.is_running = True

    def _end(self, event: Incoming, end: DoneData, source: SourceRow) -> DoneData:
        """Returns the end, without its outputs if they are not in the attempt's own folder.

        User code could have named any path, and the service serves the files of this path.
        """
        end = end.model_copy(update={"error": end.error and failure_of(end.error), "result": result_of(end.result)})
        if end.outputs is None or _is_below(end.outputs, attempt_folder(self.job.id, source.attempt)):
            return end
        self.troubles.append((f"done {event.seq} of {self.job.id} names outputs that are not its own", event.text))
        return end.model_copy(update={"outputs": None})

    def _checkpoint(self, event: Incoming, data: CheckpointData, source: SourceRow) -> None:
        job, paths = self.job, [data.path, *data.deleted]
        if not all(_is_below(path, job_folder(job.id)) for path in paths):
            self.troubles.append((f"checkpoint {event.seq} of {job.id} names a path that is not the job's", event.text))
            return
        if data.status == "committed":
            if not _is_below(data.path, attempt_folder(job.id, source.attempt)):
                self.troubles.append((f"checkpoint {event.seq} of {job.id} is not in its attempt's folder", event.text))
                return
            self.committed.append(_checkpoint_row(job, source, event, data, self.no, self.now))
        elif data.status == "corrupt":
            self.marks.append(([data.path], checkpoints.CORRUPT))
        elif data.status == "healed":
            self.healed.append(data.path)
        self.marks.append((data.deleted, self.rotated_status))

    def flush(self, conn: Connection, done: Ingested, retry_backoff_seconds: float) -> None:
        self._record(conn, done)
        for row in self.committed:
            checkpoints.insert_checkpoint(conn, row)
        for paths, status in self.marks:
            checkpoints.mark(conn, self.job.id, paths, status)
        for path in self.healed:
            checkpoints.heal(conn, self.job.id, path)
        for step, command in self.done_commands:
            if command.asked is not None:
                commands.done(conn, self.job.id, command.asked, step, command.set, evaluated=command.evaluate)
        for page in self.pages.values():
            self._save_source(conn, page)
        self._start_running(conn)
        self._close(conn, done, retry_backoff_seconds)
        if self.committed:
            rotate(conn, self.job.id)
        self._answer(conn, done)
        done.refused += sum(status == checkpoints.CORRUPT for _, status in self.marks)
        done.refused += sum(why.startswith("checkpoint ") for why, _ in self.troubles)
        for reason, raw in self.troubles:
            events.insert_dead(conn, reason, raw, self.now)
        done.dead += len(self.troubles)

    def _record(self, conn: Connection, done: Ingested) -> None:
        columns: dict[str, Any] = {}
        is_cut = False
        if self.rows:
            columns["last_no"] = self.no
            done.jobs.add(self.job.id)
        if self.progress is not None:
            columns["progress"] = self.progress
        if self.metrics:
            metrics, is_cut = latest(loads(self.job.metrics) or {}, json_safe(self.metrics))
            columns["metrics"] = json.dumps(metrics)
        if self.committed:
            columns["failed_without_checkpoint"] = 0
        if columns:
            jobs.record(conn, self.job.id, **columns)
        if is_cut and not events.has_own(conn, self.job.id, Kind.NOTE, LEFT_OUT):
            events.append(conn, self.job.id, Kind.NOTE, {"message": LEFT_OUT}, self.now)
        if self.running_ms:
            attempts.set_running_time(conn, self.job.id, self.job.attempt, self.running_ms)

    def _save_source(self, conn: Connection, page: _Page) -> None:
        source = page.source
        columns: dict[str, Any] = {}
        if page.watermark != source.watermark:
            columns["watermark"] = page.watermark
        if page.is_running and source.running_at is None:
            columns["running_at"] = self.now
        if page.end is not None:
            columns["done"] = page.end.model_dump_json()
            columns["ended_at"] = source.ended_at or self.now
            if page.end.stop == "drain":
                # Otherwise the job could be placed on this node again before the node's own heartbeat arrives.
                nodes.mark_draining(conn, source.node, source.boot)
        if columns:
            attempts.change_source(conn, source.job_id, source.attempt, source.source, **columns)

    def _start_running(self, conn: Connection) -> None:
        """Moves the job to RUNNING once all of its nodes have reported that they train.

        No further `state` event is written, because the last node's event is stored.
        """
        if self.job.state is not JobState.STARTING or not any(page.is_running for page in self.pages.values()):
            return
        job = self.job
        if any(source.running_at is None for source in attempts.sources_of(conn, job.id, job.attempt)):
            return
        jobs.move(
            conn, job.id, to=JobState.RUNNING, expect=[JobState.STARTING], attempt=job.attempt, fence=job.fence,
            reason=Reason.TRAINING, now=self.now, with_event=False, started_at=job.started_at or self.now,
        )  # fmt: skip
        attempts.change(conn, job.id, job.attempt, running_at=self.now)

    def _close(self, conn: Connection, done: Ingested, retry_backoff_seconds: float) -> None:
        ends = [page.end for page in self.pages.values() if page.is_current and page.end is not None]
        if not ends:
            return
        sources = attempts.sources_of(conn, self.job.id, self.job.attempt)
        if going_on := [source for source in sources if source.done is None and source.claim is not None]:
            stop = multi_node.stop_of(sources)
            for source in going_on if stop else ():
                done.replies[ClaimId(str(source.claim))] = AttemptReply(
                    claim=ClaimId(str(source.claim)), stop=stop, watermark=source.watermark
                )
            return
        job = jobs.lock(conn, self.job.id)
        if job is not None:
            end = End.of(multi_node.decisive(sources))
            conclude(conn, job, end, self.now, done, retry_backoff_seconds=retry_backoff_seconds)
            done.closed += 1

    def _answer(self, conn: Connection, done: Ingested) -> None:
        stored_step = self.committed[-1].step if self.committed else None
        for page in self.pages.values():
            claim = page.source.claim
            if claim is None or (page.is_current and not page.is_done and stored_step is None):
                continue
            done.replies[claim] = AttemptReply(
                claim=claim,
                superseded=not (page.is_current or page.is_done),
                watermark=page.watermark,
                stored_step=stored_step if page.is_current else None,
                closed=page.is_done or self.job.state.is_terminal,
            )


def _now_of(job: JobRow, sources: Iterable[SourceRow]) -> list[SourceRow]:
    return [source for source in sources if (source.job_id, source.attempt) == (job.id, job.attempt)]


def _checkpoint_row(
    job: JobRow, source: SourceRow, event: Incoming, data: CheckpointData, no: int, now: int
) -> CheckpointRow:
    return CheckpointRow(
        id=new_checkpoint_id(),
        job_id=job.id,
        attempt=source.attempt,
        step=event.step or 0,
        no=no,
        path=data.path,
        status=checkpoints.COMMITTED,
        bytes=data.bytes,
        files=data.files,
        manifest_sha256=data.manifest_sha256,
        metrics=json.dumps(latest({}, json_safe(data.metrics))[0]),
        is_best=data.is_best,
        score=data.score,
        created_at=now,
    )


def _is_below(path: str, folder: PurePosixPath) -> bool:
    pure = PurePosixPath(path)
    return ".." not in pure.parts and pure != folder and pure.is_relative_to(folder)
