"""Reads one job's new events, and collects what they change before anything is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from footplate.contract.events import (
    METRIC_KINDS,
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
from footplate.contract.lifecycle import JobState
from footplate.contract.messages import AttemptReply
from service.counters import Counts
from service.events import curves
from service.events.entries import Batch, IncomingEvent
from service.events.row_limits import failure_of, latest, result_of
from service.jobs.beat import holds
from service.jobs.conclude import Effects
from service.store import checkpoints, events
from service.store.row_types import CheckpointRow, EventRow, JobRow, SourceRow


@dataclass(slots=True)
class IngestEffects(Effects):
    """The results of one transaction, and the replies to send."""

    watermarks: dict[tuple[JobId, int, int], int] = field(default_factory=dict)
    replies: dict[ClaimId, AttemptReply] = field(default_factory=dict)


@dataclass(slots=True)
class SourceChanges:
    """The changes of one source: its watermark, and whether it runs or has ended."""

    source: SourceRow
    is_current: bool
    watermark: int
    is_running: bool = False
    end: DoneData | None = None

    @property
    def is_done(self) -> bool:
        return self.source.done is not None or self.end is not None


@dataclass(slots=True)
class JobChanges:
    """The changes that new events make to one job."""

    job: JobRow
    no: int
    """The number of the newest event."""
    rows: list[EventRow] = field(default_factory=list)
    points: curves.Gathered = field(default_factory=curves.Gathered)
    sources: dict[tuple[int, int], SourceChanges] = field(default_factory=dict)
    """The changes of each source, by its attempt and number."""
    continued: tuple[int, str] | None = None
    """The attempt that reported where it continues, and the path of the checkpoint."""
    progress: str | None = None
    running_ms: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    committed: list[CheckpointRow] = field(default_factory=list)
    marks: list[tuple[list[str], str]] = field(default_factory=list)
    """Paths of checkpoints, and the status that they get."""
    healed: list[str] = field(default_factory=list)
    """Paths of checkpoints that were corrupt, and are complete again."""
    done_commands: list[tuple[int, DoData]] = field(default_factory=list)
    """The commands that training carried out, each with the step after which that happened."""
    troubles: list[tuple[str, str]] = field(default_factory=list)
    """Events that could not be applied, each with the reason."""


class Collector:
    """Collects the changes of one transaction to one job."""

    def __init__(self, job: JobRow, now: int, sources: Sequence[SourceRow], rotated_status: str) -> None:
        """Takes the current attempt's `sources`, and the status to store for checkpoints that training drops."""
        self.job, self.now, self.sources, self.rotated_status = job, now, sources, rotated_status
        self.changes = JobChanges(job, job.last_no)

    def take(self, batch: Batch, source: SourceRow, effects: IngestEffects) -> None:
        key = (source.attempt, source.source)
        if (source_changes := self.changes.sources.get(key)) is None:
            is_current = holds(self.job, source, batch.attempt, batch.fence, batch.claim)
            source_changes = self.changes.sources[key] = SourceChanges(source, is_current, source.watermark)
        if batch.first > source_changes.watermark + 1:
            self._declare_gap(source_changes, batch.first - 1)
        for event in batch.events:
            if event.seq <= source_changes.watermark:
                effects.counts.events_duplicate += 1
            elif event.seq > source_changes.watermark + 1:
                effects.counts.events_ahead += 1
            elif source_changes.is_done:
                effects.counts.stale_refused += 1
            else:
                source_changes.watermark = event.seq
                self._keep(event, source_changes, effects.counts)
        effects.watermarks[self.job.id, source.attempt, source.source] = source_changes.watermark

    def _declare_gap(self, source_changes: SourceChanges, last_seq: int) -> None:
        """Writes a gap event for events that neither SQL nor the journal has, and moves the watermark past them."""
        source, first_seq, source_changes.watermark = source_changes.source, source_changes.watermark + 1, last_seq
        if self.job.state.is_terminal:
            return
        self.changes.no += 1
        lost_events = f"events {first_seq} to {last_seq} of attempt {source.attempt}"
        text = f"{lost_events} are lost: the node's journal does not have them"
        data = {"message": text, "source": source.source, "from": first_seq, "to": last_seq, "reason": "not_in_journal"}
        gap = events.own_event(self.job.id, self.changes.no, source.attempt, Kind.GAP, data, self.now)
        self.changes.rows.append(gap)

    def _keep(self, event: IncomingEvent, source_changes: SourceChanges, counts: Counts) -> None:
        if self.job.state.is_terminal:
            counts.events_late += 1
        else:
            self.changes.no += 1
            counts.events_stored += 1
            source = source_changes.source
            kind, text = event.kind, event.text
            if kind == Kind.STATE and not self._reports_running(event, source_changes):
                # A state that the job does not enter is stored as a note, so that `state` events match the job's row.
                kind, text = Kind.NOTE, json.dumps({"message": self._note_text(event, source)})
            elif kind == Kind.GAP:
                counts.gaps_declared += 1
            self.changes.rows.append(
                EventRow(
                    self.job.id, self.changes.no, source.attempt, source.source, event.seq, event.rank, kind, event.at,
                    event.step, event.epoch, text,
                )
            )  # fmt: skip
            if kind in METRIC_KINDS and event.data:
                self.changes.points.take(source.attempt, self.changes.no, event.at, event.step, event.epoch, event.data)
        if event.data is not None:
            try:
                self._apply(event, event.data, source_changes)
            except ValidationError as error:
                self._refuse(event, f": {error}")

    def _reports_running(self, event: IncomingEvent, source_changes: SourceChanges) -> bool:
        is_running = event.data is not None and event.data.get("state") == JobState.RUNNING
        runs = is_running and source_changes.is_current and self.job.state in (JobState.STARTING, JobState.RUNNING)
        # If a job has several nodes, only the event of the last node becomes a `state` event.
        return runs and all(
            self._runs(source) for source in self.sources if source.source != source_changes.source.source
        )

    def _runs(self, source: SourceRow) -> bool:
        source_changes = self.changes.sources.get((source.attempt, source.source))
        return source.running_at is not None or (source_changes is not None and source_changes.is_running)

    def _note_text(self, event: IncomingEvent, source: SourceRow) -> str:
        reported_state = str((event.data or {}).get("state"))[:100]
        where = f" on node {source.source + 1} of {len(self.sources)}" if len(self.sources) > 1 else ""
        return f"attempt {source.attempt} reports that it is {reported_state}{where}"

    def _apply(self, event: IncomingEvent, data: dict[str, Any], source_changes: SourceChanges) -> None:
        """Collects what an event changes in its job, such as progress, metrics, checkpoints or the end of an attempt.

        If the source no longer holds the attempt, only its end (`done`) is collected.
        """
        if event.kind == Kind.DONE:
            source_changes.end = self._end(event, DoneData.model_validate(data), source_changes.source)
        elif not source_changes.is_current:
            return
        elif event.kind in (Kind.LOG, Kind.EVAL):
            self.changes.metrics.update(data)
        elif event.kind == Kind.NOTE and source_changes.source.source == 0 and isinstance(data.get("checkpoint"), str):
            self.changes.continued = source_changes.source.attempt, data["checkpoint"]
        elif event.kind == Kind.PROGRESS:
            self.changes.progress = ProgressData.model_validate(data).model_dump_json()
        elif event.kind == Kind.SYSTEM:
            running_ms = round(SystemData.model_validate(data).running_s * 1000)
            self.changes.running_ms = max(self.changes.running_ms, running_ms)
        elif event.kind == Kind.DO:
            command = DoData.model_validate(data)
            if command.status == "done":
                self.changes.done_commands.append((event.step or 0, command))
        elif event.kind == Kind.CHECKPOINT:
            self._checkpoint(event, CheckpointData.model_validate(data), source_changes.source)
        elif event.kind == Kind.STATE and data.get("state") == JobState.RUNNING:
            source_changes.is_running = True

    def _end(self, event: IncomingEvent, end: DoneData, source: SourceRow) -> DoneData:
        """Returns the end, without its outputs if they are not in the attempt's own folder.

        User code could have named any path, and the service serves the files of this path.
        """
        end = end.model_copy(update={"error": end.error and failure_of(end.error), "result": result_of(end.result)})
        if end.outputs is None or _is_below(end.outputs, attempt_folder(self.job.id, source.attempt)):
            return end
        self._refuse(event, " names outputs that are not its own")
        return end.model_copy(update={"outputs": None})

    def _checkpoint(self, event: IncomingEvent, data: CheckpointData, source: SourceRow) -> None:
        job, paths = self.job, [data.path, *data.deleted]
        if not all(_is_below(path, job_folder(job.id)) for path in paths):
            self._refuse(event, " names a path that is not the job's")
            return
        if data.status == "committed":
            if not _is_below(data.path, attempt_folder(job.id, source.attempt)):
                self._refuse(event, " is not in its attempt's folder")
                return
            row = CheckpointRow(
                id=new_checkpoint_id(), job_id=job.id, attempt=source.attempt, step=event.step or 0,
                no=self.changes.no, path=data.path, status=checkpoints.COMMITTED, bytes=data.bytes, files=data.files,
                manifest_sha256=data.manifest_sha256, metrics=json.dumps(latest({}, json_safe(data.metrics))[0]),
                is_best=data.is_best, score=data.score, created_at=self.now,
            )  # fmt: skip
            self.changes.committed.append(row)
        elif data.status == "corrupt":
            self.changes.marks.append(([data.path], checkpoints.CORRUPT))
        elif data.status == "healed":
            self.changes.healed.append(data.path)
        self.changes.marks.append((data.deleted, self.rotated_status))

    def _refuse(self, event: IncomingEvent, why: str) -> None:
        self.changes.troubles.append((f"{event.kind} {event.seq} of {self.job.id}{why}", event.text))


def _is_below(path: str, folder: PurePosixPath) -> bool:
    pure = PurePosixPath(path)
    return ".." not in pure.parts and pure != folder and pure.is_relative_to(folder)
