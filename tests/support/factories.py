"""Makes the smallest valid spec and event."""

from __future__ import annotations

from typing import Any

from footplate.contract.events import Kind, WorkerEvent, now_text
from footplate.contract.spec import JobSpec


def make_spec(**changes: Any) -> JobSpec:
    """Returns the whole spec of a toy job. Keyword arguments replace top-level fields."""
    return JobSpec.parse({"model": "toy/mlp", "data": "toy/regression", **changes})


def make_worker_event(seq: int = 1, **changes: Any) -> WorkerEvent:
    """Returns a log event as a journal has it. Keyword arguments replace fields."""
    fields: dict[str, Any] = {"seq": seq, "kind": Kind.LOG, "at": now_text(), "step": seq, "data": {"loss": 1.0}}
    return WorkerEvent(**{**fields, **changes})
