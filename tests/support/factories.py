"""Makes the smallest valid spec and event, and has the form in which a worker sends events."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from footplate.contract.events import Kind, now_text
from footplate.contract.fields import InternalMessage
from footplate.contract.spec import JobSpec


class WorkerEvent(InternalMessage):
    """An event as a worker writes it to its journal and sends it through Redis."""

    seq: int = Field(ge=1)
    rank: int = 0
    kind: Kind
    at: str
    step: int | None = None
    epoch: float | None = None
    data: dict[str, Any] = Field(default_factory=dict)


def make_spec(**changes: Any) -> JobSpec:
    """Returns the whole spec of a toy job. Keyword arguments replace top-level fields."""
    return JobSpec.parse({"model": "toy/mlp", "data": "toy/regression", **changes})


def make_worker_event(seq: int = 1, **changes: Any) -> WorkerEvent:
    """Returns a log event as a journal has it. Keyword arguments replace fields."""
    fields: dict[str, Any] = {"seq": seq, "kind": Kind.LOG, "at": now_text(), "step": seq, "data": {"loss": 1.0}}
    return WorkerEvent(**{**fields, **changes})
