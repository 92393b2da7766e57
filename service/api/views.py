"""Converts rows of SQL to the resources that users see."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from footplate.contract.fields import Json, Resource
from footplate.contract.ids import JobId, NodeId
from footplate.contract.resources.artifacts import Checkpoint
from footplate.contract.resources.history import Attempt, AttemptNode
from footplate.contract.resources.jobs import Job
from footplate.contract.resources.operations import Node, NodeState
from service.store.mapping import shown_as
from service.store.row_types import AttemptRow, CheckpointRow, EventRow, JobRow, NodeRow, SourceRow, loads
from service.store.times import text_of

Shown = TypeVar("Shown", bound=Resource)
_RESERVED = ('"no":', '"step":', '"epoch":')


def moment(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else text_of(milliseconds)


def etag(version: int) -> str:
    return f'"{version}"'


def shown(row: Any, resource: type[Shown], /, **values: Any) -> Shown:
    """Returns a resource. Its fields are those in `values`, and else the row's columns of the same names."""
    row_class: Any = type(row)
    for name, show in _common(row_class, resource):
        if name not in values:
            value = getattr(row, name)
            values[name] = value if show is None or value is None else show(value)
    return resource(**values)


@cache
def _common(row_class: type, resource: type[Resource]) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """Returns the fields that a row and a resource share, each with the function that converts its value, or None."""
    conversions = shown_as(row_class)
    return [(name, conversions[name]) for name in resource.model_fields if name in conversions]


def job(row: JobRow, nodes: Sequence[str] = ()) -> Job:
    return shown(
        row,
        Job,
        metadata=loads(row.job_metadata),
        actions=row.actions,
        node=nodes[0] if nodes else None,
        nodes=nodes,
        running_s=row.running_ms / 1000,
        metrics=loads(row.metrics) or {},
        warnings=loads(row.warnings) or (),
        external=row.runs_elsewhere,
    )


def flat(row: EventRow) -> str:
    """Returns a log or eval event as one flat JSON object: `{"no", "step", "epoch", "loss", …}`."""
    head = _dumps({"no": row.no, "step": row.step, "epoch": row.epoch})
    data = row.data
    if any(name in data for name in _RESERVED):
        # A metric with the name of an envelope field is dropped, because the key would otherwise be there twice.
        data = _dumps({k: v for k, v in json.loads(data).items() if k not in ("no", "step", "epoch")})
    return head if data == "{}" else f"{head[:-1]},{data[1:]}"


def attempt(row: AttemptRow, sources: Sequence[SourceRow], names: Mapping[NodeId, str]) -> Attempt:
    nodes = tuple(
        shown(source, AttemptNode, id=source.node, name=names.get(source.node, source.node), events=source.watermark)
        for source in sources
        if source.attempt == row.attempt
    )
    return shown(row, Attempt, running_s=row.running_ms / 1000, nodes=nodes)


def checkpoint(row: CheckpointRow) -> Checkpoint:
    return shown(row, Checkpoint, pinned=row.is_pinned)


def node(row: NodeRow, sources: Sequence[SourceRow], visible: Collection[JobId], *, may_change: bool) -> Node:
    on_node = [source for source in sources if source.node == row.id]
    return shown(
        row,
        Node,
        state=node_state(row),
        takes_work=row.takes_work,
        message=row.why_not,
        slots_used=sum(source.slots for source in on_node),
        jobs=tuple(sorted({source.job_id for source in on_node if source.job_id in visible})),
        actions=_node_actions(row, is_used=bool(on_node)) if may_change else (),
    )


def _node_actions(row: NodeRow, *, is_used: bool) -> tuple[str, ...]:
    if row.lost:
        return () if is_used else ("remove",)
    return ("undrain",) if row.draining or row.drain_requested else ("drain",)


def node_state(row: NodeRow) -> NodeState:
    """Returns the node's state. `waiting` is a connected node that cannot take work yet."""
    if row.lost:
        return "lost"
    if row.draining or row.drain_requested:
        return "draining"
    return "up" if row.takes_work else "waiting"


def _dumps(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))
