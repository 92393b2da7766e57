"""The envelope, and one class of data per kind. An event is one immutable fact about a job.

`no` is dense per job and is the reader's cursor; (job, attempt, source, seq) is the worker's own count and makes ingest
exactly-once. On the wire between worker and service an event has no `no` yet: SQL gives it one in commit order.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from footplate.contract.ids import JobId

SERVICE_SOURCE = -1
"""The source of events that the service itself writes; its seq is their `no`."""


class Kind(StrEnum):
    STATE = "state"
    """The job, or the attempt, changed state. Never dropped."""
    LOG = "log"
    """Metrics of the training loop."""
    EVAL = "eval"
    """Metrics of an evaluation. Never dropped."""
    CHECKPOINT = "checkpoint"
    """A checkpoint was committed, or found corrupt. Never dropped."""
    PROGRESS = "progress"
    """Where the loop is, at most a few times a second."""
    LINE = "line"
    """A line that training printed."""
    SYSTEM = "system"
    """GPU, CPU and memory of one rank."""
    DO = "do"
    """What somebody asked of the running loop, and what came of it: `POST /jobs/{id}/do`. Never dropped."""
    NOTE = "note"
    """A sentence for the reader of a history, or what user code said with footplate.note()."""
    GAP = "gap"
    """Events that are lost and known to be: from seq, to seq."""
    DONE = "done"
    """The last event of one source of an attempt: how it ended. Never dropped."""


KEPT = frozenset({Kind.STATE, Kind.EVAL, Kind.CHECKPOINT, Kind.DO, Kind.DONE})
"""Never dropped, and on disk before anything else happens."""

METRIC_KINDS = frozenset({Kind.LOG, Kind.EVAL})


class WorkerEvent(BaseModel):
    """What a journal line holds and what travels through Redis. Short keys cost nothing: they are the public ones."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    seq: int = Field(ge=1)
    rank: int = 0
    kind: Kind
    at: str
    step: int | None = None
    epoch: float | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Event(BaseModel):
    """What a user reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    v: Literal[1] = 1
    job: JobId
    no: int
    attempt: int
    source: int
    seq: int
    rank: int
    kind: Kind
    at: str
    step: int | None
    epoch: float | None
    data: dict[str, Any]


class StateData(BaseModel):
    """`state`: by the service for the job; by a worker once, as its first event, with state `running`."""

    state: str
    reason: str | None = None
    message: str | None = None
    by: str | None = None
    """Who asked for it: the name and the prefix of a key. Not there: nobody was asked for one, or nobody asked."""
    traceparent: str | None = None
    """Of a job's first event: the trace that its POST was part of. Not there: the service sends no traces."""


class CheckpointData(BaseModel):
    """`checkpoint`: path is relative to the artifact store's root."""

    status: Literal["committed", "corrupt", "healed", "failed"]
    """healed: it was corrupt, and verifies again."""
    path: str
    bytes: int = Field(default=0, ge=0, lt=2**63)
    manifest_sha256: str = ""
    files: int = Field(default=0, ge=0, lt=2**31)
    metrics: dict[str, Any] = Field(default_factory=dict)
    is_best: bool = False
    score: float | None = Field(default=None, allow_inf_nan=False)
    """`metric_for_best_model`, where it was evaluated at this very step: by it `keep_best` ranks over all attempts."""
    message: str | None = None
    deleted: list[str] = Field(default_factory=list)
    """Paths of older checkpoints that rotation removed after this one was committed."""


class Change(BaseModel):
    """Of an argument of training."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    was: Any = Field(alias="from")
    now: Any = Field(alias="to")


class DoData(BaseModel):
    """`do`: once by the service, when it is asked for, and once by the loop, at the step that it was done after."""

    status: Literal["asked", "done", "again", "dropped"]
    """again: a later attempt came to the same step from an earlier checkpoint. dropped: the job succeeded first."""
    message: str
    asked: int | None = None
    """The number of the event that asked."""
    by: str | None = None
    """Who asked: the name and the prefix of a key."""
    save: bool = False
    evaluate: bool = False
    set: dict[str, Any] = Field(default_factory=dict)
    """By argument: as it was asked for; or, once it is done, a Change."""
    refused: dict[str, str] = Field(default_factory=dict)
    """What could not be done, and why."""


class ProgressData(BaseModel):
    """`progress`: steps of optimizer updates; eta in seconds, None while unknown."""

    step: int = Field(ge=0, lt=2**63)
    max_steps: int = Field(ge=0, lt=2**63)
    epoch: float = Field(ge=0, lt=2**63, allow_inf_nan=False)
    eta_s: float | None = Field(default=None, ge=0, lt=2**63, allow_inf_nan=False)


class SystemData(BaseModel):
    """`system`: what the attempt takes of its node; and for how long training has run, by its supervisor's clock."""

    running_s: float = Field(default=0.0, ge=0, lt=1e9, allow_inf_nan=False)


class Ending(StrEnum):
    """How a source of an attempt ended, as its supervisor saw it."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """Because it was told to: cancel, pause or drain."""
    FAILED = "failed"


class Failure(BaseModel):
    """An attempt's error as the user sees it: `error` of a job."""

    code: str
    message: str
    hint: str | None = None
    rank: int | None = None
    traceback: str | None = None
    """The tail; the rest is in the attempt's log."""


class DoneData(BaseModel):
    """`done`: its seq is the last of this source."""

    ending: Ending
    reason: str
    stop: Literal["cancel", "pause", "drain", "peer"] | None = None
    """What it obeyed, when it was told to stop."""
    error: Failure | None = None
    another_s: bool = False
    """It failed because a rank on another node was gone, whose end is the reason."""
    result: dict[str, Any] = Field(default_factory=dict)
    running_s: float = 0.0
    had_checkpoint: bool = False
    outputs: str | None = None


def now_text() -> str:
    """RFC 3339, UTC, milliseconds."""
    return to_text(datetime.now(UTC))


def to_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_safe(value: Any) -> Any:
    """NaN and infinities as the strings "NaN", "Infinity", "-Infinity"; anything unknown as its text."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [json_safe(item) for item in value]
    return json_safe(value.item()) if hasattr(value, "item") and getattr(value, "size", 2) == 1 else str(value)
