"""The envelope of events, and classes of the data of some kinds. An event is one immutable fact about a job.

`no` counts a job's events without gaps, and is the reader's cursor. An event from a worker gets its `no` when it is
committed to SQL. Before, (job, attempt, source, seq) identifies the event, so that no event is stored twice.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, Field

from footplate.contract.fields import Resource
from footplate.contract.ids import JobId

SERVICE_SOURCE = -1
"""The source of events that the service itself writes. Their seq equals their `no`."""


class Kind(StrEnum):
    STATE = "state"
    """The job, or the attempt, changed state. Never dropped."""
    # With a step, the job goes back to this step. A NOTE with a step and a `checkpoint` means that an attempt continues
    # there. Later points of earlier attempts are not in curves any more. `by` is the key that requested the change, by
    # its name and prefix. The job's first event has the `traceparent` of its POST.
    LOG = "log"
    """Metrics of the training loop."""
    EVAL = "eval"
    """Metrics of an evaluation. Never dropped."""
    CHECKPOINT = "checkpoint"
    """A checkpoint was committed, did not verify, verified again, or could not be saved. Never dropped."""
    PROGRESS = "progress"
    """The number of optimizer steps so far, at most a few times a second."""
    LINE = "line"
    """A line that training printed."""
    SYSTEM = "system"
    """GPU, CPU and memory of one rank."""
    DO = "do"
    """A live command to running training, and its result: `POST /jobs/{id}/do`. Never dropped."""
    NOTE = "note"
    """A sentence about the job's history, or a text that user code passed to footplate.note()."""
    GAP = "gap"
    """A range of lost events: the first and the last seq."""
    DONE = "done"
    """The last event of one source of an attempt, with its ending. Never dropped."""


KEPT = frozenset({Kind.STATE, Kind.EVAL, Kind.CHECKPOINT, Kind.DO, Kind.DONE})
"""The kinds of events that are never dropped. A supervisor syncs them to the disk at once."""

METRIC_KINDS = frozenset({Kind.LOG, Kind.EVAL})


class Event(Resource):
    """One immutable fact about a job, as users read it."""

    v: Literal[1]
    job: JobId
    no: int
    """The number of the event in the job's history, without gaps. Readers use it as a cursor."""
    attempt: int
    source: int
    seq: int
    rank: int
    kind: Kind
    at: str
    step: int | None
    epoch: float | None
    data: dict[str, Any]


class CheckpointData(BaseModel):
    """`checkpoint`: a checkpoint's state. `path` is relative to the artifact store's root."""

    status: Literal["committed", "corrupt", "healed", "failed"]
    """The status "healed" means that a corrupt checkpoint verifies again."""
    path: str
    bytes: int = Field(default=0, ge=0, lt=2**63)
    manifest_sha256: str = ""
    files: int = Field(default=0, ge=0, lt=2**31)
    metrics: dict[str, Any] = Field(default_factory=dict)
    is_best: bool = False
    score: float | None = Field(default=None, allow_inf_nan=False)
    """The value of `metric_for_best_model` at this step, if it was evaluated. `keep_best` ranks by it over all
    attempts."""
    message: str | None = None
    deleted: list[str] = Field(default_factory=list)
    """Paths of older checkpoints that rotation removed after this one was committed."""


class DoData(BaseModel):
    """`do`: a live command.

    The service writes one event for the request. Training writes another one after it has carried out the command.
    """

    status: Literal["asked", "done", "again", "dropped"]
    """"again" means that a later attempt repeated the command at the same step. "dropped" means that the job succeeded
    before the command."""
    message: str
    asked: int | None = None
    """The number of the event that reported the request for this command."""
    by: str | None = None
    """The key that requested the command: its name and prefix."""
    save: bool = False
    evaluate: bool = False
    set: dict[str, Any] = Field(default_factory=dict)
    """Values by argument. In the request these are new values, and in the result each has `from` and `to`."""
    refused: dict[str, str] = Field(default_factory=dict)
    """Reasons by argument, for changes that could not be made."""


class ProgressData(BaseModel):
    """`progress`: the number of optimizer steps so far. `eta_s` is the time left in seconds, or None if unknown."""

    step: int = Field(ge=0, lt=2**63)
    max_steps: int = Field(ge=0, lt=2**63)
    epoch: float = Field(ge=0, lt=2**63, allow_inf_nan=False)
    eta_s: float | None = Field(default=None, ge=0, lt=2**63, allow_inf_nan=False)


class SystemData(BaseModel):
    """`system`: resource use of the attempt. `running_s` is the training time in seconds by the supervisor's clock."""

    running_s: float = Field(default=0.0, ge=0, lt=1e9, allow_inf_nan=False)


class Ending(StrEnum):
    """The way in which one source of an attempt ended, as its supervisor observed it."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """The source stopped because of a cancel, a pause, a drain, the time limit, or a failure on another node."""
    FAILED = "failed"


class Failure(BaseModel):
    """An attempt's error as the user sees it: `error` of a job."""

    code: str
    message: str
    hint: str | None = None
    rank: int | None = None
    traceback: str | None = None
    """The last lines of the traceback. The attempt's log has the whole traceback."""


class DoneData(BaseModel):
    """`done`: the end of a source. The event's seq is the source's last one."""

    ending: Ending
    reason: str
    stop: Literal["cancel", "pause", "drain", "peer"] | None = None
    """The stop request that the source followed."""
    error: Failure | None = None
    is_follow_up: bool = False
    """True if the rank or source failed only because another rank had failed. The job then gets that rank's error."""
    result: dict[str, Any] = Field(default_factory=dict)
    running_s: float = 0.0
    had_checkpoint: bool = False
    outputs: str | None = None


def now_text() -> str:
    """Returns the time as RFC 3339 in UTC, with milliseconds."""
    return to_text(datetime.now(UTC))


def to_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


MAX_EVENT_BYTES = 64 * 1024
"""The longest event as JSON. The data of a longer event is cut."""


def cut(data: Any, size: int) -> dict[str, Any]:
    """Returns the data of an event that is too long, with long texts cut, and without the values that do not fit."""
    short_data: dict[str, Any] = {"truncated": True, "bytes": size}
    room = MAX_EVENT_BYTES // 4
    for name, value in (data if isinstance(data, dict) else {}).items():
        short_value = value[:4096] if isinstance(value, str) else value
        bytes_needed = len(name) + len(json.dumps(json_safe(short_value)))
        if bytes_needed <= room:
            room -= bytes_needed
            short_data[name[:256]] = short_value
    return short_data


def json_safe(value: Any) -> Any:
    """Converts to JSON: NaN and infinities become "NaN", "Infinity", "-Infinity", and unknown types their text."""
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
