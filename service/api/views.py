"""Converts rows of SQL to the resources that users see."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from footplate.contract.fields import Json
from footplate.contract.ids import JobId, NodeId
from footplate.contract.lifecycle import actions
from footplate.contract.resources.artifacts import Checkpoint
from footplate.contract.resources.history import Attempt, AttemptNode, MetricSummary, SeenMetric
from footplate.contract.resources.jobs import Job
from footplate.contract.resources.operations import Node, NodeState
from service.events.series import Seen, Summary
from service.store.rows import AttemptRow, CheckpointRow, EventRow, JobRow, NodeRow, SourceRow, loads
from service.store.times import text_of

_RESERVED = ('"no":', '"step":', '"epoch":')


def moment(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else text_of(milliseconds)


def etag(version: int) -> str:
    return f'"{version}"'


def job(row: JobRow, nodes: Sequence[str] = ()) -> Job:
    return Job(**job_fields(row, nodes))


def job_fields(row: JobRow, nodes: Sequence[str] = ()) -> Json:
    """Returns the values of a Job, for it and for the resources that extend it."""
    return {
        "id": row.id,
        "project": row.project,
        "name": row.name,
        "tags": loads(row.tags),
        "metadata": loads(row.job_metadata),
        "priority": row.priority,
        "state": row.state,
        "reason": row.reason,
        "message": row.message,
        "desired": row.desired,
        "actions": actions(row.state, row.desired),
        "attempt": row.attempt,
        "node": nodes[0] if nodes else None,
        "nodes": nodes,
        "version": row.version,
        "last_no": row.last_no,
        "created_at": text_of(row.created_at),
        "updated_at": text_of(row.updated_at),
        "queued_at": text_of(row.queued_at),
        "started_at": moment(row.started_at),
        "finished_at": moment(row.finished_at),
        "running_s": row.running_ms / 1000,
        "progress": loads(row.progress),
        "metrics": loads(row.metrics) or {},
        "result": loads(row.result),
        "error": loads(row.error),
        "warnings": loads(row.warnings) or (),
    }


def listing(items: Sequence[str], next_cursor: str | None, *, last: int) -> str:
    """Writes a page of events, which are JSON already, and where to go on."""
    tail = _dumps({"next_cursor": next_cursor, "last": last})
    return f'{{"data":[{",".join(items)}],{tail[1:]}'


def flat(row: EventRow) -> str:
    """Writes a log or an eval as one object: `{"no", "step", "epoch", "loss", …}`."""
    head = _dumps({"no": row.no, "step": row.step, "epoch": row.epoch})
    data = row.data
    if any(name in data for name in _RESERVED):
        # A metric with the name of an envelope field is dropped, because the key would otherwise be there twice.
        data = _dumps({k: v for k, v in json.loads(data).items() if k not in ("no", "step", "epoch")})
    return head if data == "{}" else f"{head[:-1]},{data[1:]}"


def attempt(row: AttemptRow, sources: Sequence[SourceRow], names: Mapping[NodeId, str]) -> Attempt:
    return Attempt(
        attempt=row.attempt,
        ending=row.ending,
        reason=row.reason,
        placed_at=text_of(row.placed_at),
        claimed_at=moment(row.claimed_at),
        running_at=moment(row.running_at),
        ended_at=moment(row.ended_at),
        running_s=row.running_ms / 1000,
        error=loads(row.error),
        result=loads(row.result),
        nodes=tuple(
            AttemptNode(
                id=source.node,
                name=names.get(source.node, source.node),
                slots=source.slots,
                gpus=loads(source.gpus),
                events=source.watermark,
            )
            for source in sources
            if source.attempt == row.attempt
        ),
    )


def checkpoint(row: CheckpointRow) -> Checkpoint:
    return Checkpoint(**checkpoint_fields(row))


def checkpoint_fields(row: CheckpointRow) -> Json:
    """Returns the values of a Checkpoint, for it and for the resources that extend it."""
    return {
        "id": row.id,
        "attempt": row.attempt,
        "step": row.step,
        "no": row.no,
        "status": row.status,
        "bytes": row.bytes,
        "files": row.files,
        "path": row.path,
        "manifest_sha256": row.manifest_sha256,
        "metrics": loads(row.metrics),
        "is_best": row.is_best,
        "pinned": row.is_pinned,
        "created_at": text_of(row.created_at),
    }


def node(row: NodeRow, sources: Sequence[SourceRow], visible: Collection[JobId]) -> Node:
    mine = [source for source in sources if source.node == row.id]
    return Node(
        id=row.id,
        name=row.name,
        state=node_state(row),
        takes_work=row.takes_work,
        message=row.why_not,
        refused=row.refused,
        exposed=row.exposed,
        pool=row.pool,
        slots=row.slots,
        slots_used=sum(source.slots for source in mine),
        gpus=loads(row.gpus),
        jobs=tuple(sorted({source.job_id for source in mine if source.job_id in visible})),
        versions=loads(row.versions),
        catalogue_hash=row.catalogue_hash,
        actions=() if row.lost or row.draining or row.drain_requested else ("drain",),
        first_seen_at=text_of(row.first_seen_at),
        seen_at=text_of(row.seen_at),
    )


def node_state(row: NodeRow) -> NodeState:
    """Returns the node's state. `waiting` is a connected node that cannot take work yet."""
    if row.lost:
        return "lost"
    if row.draining or row.drain_requested:
        return "draining"
    return "up" if row.takes_work else "waiting"


def _dumps(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


def metric_summary(summary: Summary) -> MetricSummary:
    return MetricSummary(
        name=summary.name,
        count=summary.count,
        not_finite=summary.not_finite,
        last=_seen_metric(summary.last),
        min=_seen_metric(summary.least) if summary.least else None,
        max=_seen_metric(summary.most) if summary.most else None,
    )


def _seen_metric(seen: Seen) -> SeenMetric:
    value, no, at, step, epoch = seen.point
    return SeenMetric(value=value, no=no, step=step, epoch=epoch, at=at, attempt=seen.attempt, repeated=seen.repeated)
