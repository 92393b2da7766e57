"""Makes the smallest valid spec and event, and has the form in which a worker sends events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from footplate.contract.arguments import TrainingArguments
from footplate.contract.arguments.read import good_arguments
from footplate.contract.errors import InvalidSpec
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


def read_arguments(values: Mapping[str, object]) -> TrainingArguments:
    """Parses the field `training` of a spec. Raises InvalidSpec with the problems of all arguments."""
    args, problems = good_arguments(values)
    if problems:
        raise InvalidSpec(problems)
    return args


def make_worker_event(seq: int = 1, **changes: Any) -> WorkerEvent:
    """Returns a log event as a journal has it. Keyword arguments replace fields."""
    fields: dict[str, Any] = {"seq": seq, "kind": Kind.LOG, "at": now_text(), "step": seq, "data": {"loss": 1.0}}
    return WorkerEvent(**{**fields, **changes})
