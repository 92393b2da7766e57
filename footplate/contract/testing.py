"""Public factories of the smallest valid spec and events, for our tests and yours."""

from __future__ import annotations

from typing import Any

from footplate.contract.events import Event, Kind, WorkerEvent, now_text
from footplate.contract.ids import new_job_id
from footplate.contract.spec import JobSpec


def make_spec(**changes: Any) -> JobSpec:
    """Returns the whole spec of a toy job. Keyword arguments replace top-level fields."""
    return JobSpec.parse({"model": "toy/mlp", "data": "toy/regression", **changes})


def make_event(no: int = 1, **changes: Any) -> Event:
    """Returns an event as a user reads it."""
    fields: dict[str, Any] = {
        "job": new_job_id(), "no": no, "attempt": 1, "source": 0, "seq": no, "rank": 0, "kind": Kind.LOG,
        "at": now_text(), "step": no, "epoch": 0.0, "data": {"loss": 1.0},
    }  # fmt: skip
    return Event(**{**fields, **changes})


def make_worker_event(seq: int = 1, **changes: Any) -> WorkerEvent:
    """Returns an event as a journal holds it."""
    fields: dict[str, Any] = {"seq": seq, "kind": Kind.LOG, "at": now_text(), "step": seq, "data": {"loss": 1.0}}
    return WorkerEvent(**{**fields, **changes})
