"""Rows as users see them. JSON that SQL holds as text is put in as it is: nothing is parsed to be written again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from footplate.contract.ids import JobId, NodeId
from footplate.contract.lifecycle import Desired, JobState, actions
from service.store.rows import AttemptRow, CheckpointRow, EventRow, JobRow, NodeRow, SourceRow, loads
from service.store.times import text_of

_RESERVED = ('"no":', '"step":', '"epoch":')


def moment(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else text_of(milliseconds)


def etag(row: JobRow) -> str:
    return f'"{row.version}"'


def job_json(row: JobRow, nodes: Sequence[str] = ()) -> str:
    """One job, as every route answers it."""
    return (
        f'{{"id":"{row.id}","project":{_text(row.project)},"name":{_text(row.name)},"tags":{row.tags},'
        f'"metadata":{row.job_metadata},"priority":{row.priority},"state":"{row.state}","reason":"{row.reason}",'
        f'"message":{_text(row.message)},"desired":"{row.desired}","actions":{_actions(row.state, row.desired)},'
        f'"attempt":{row.attempt},"node":{_text(nodes[0] if nodes else None)},"nodes":{_dumps(list(nodes))},'
        f'"version":{row.version},"last_no":{row.last_no},"created_at":{_moment(row.created_at)},'
        f'"updated_at":{_moment(row.updated_at)},"queued_at":{_moment(row.queued_at)},'
        f'"started_at":{_moment(row.started_at)},"finished_at":{_moment(row.finished_at)},'
        f'"running_s":{row.running_ms / 1000},"progress":{row.progress or "null"},"metrics":{row.metrics or "{}"},'
        f'"result":{row.result or "null"},"error":{row.error or "null"},'
        f'"warnings":{row.warnings or "[]"}}}'
    )


def listing(items: Sequence[str], next_cursor: str | None, **more: Any) -> str:
    """A page: items that are JSON already, and where to go on."""
    tail = _dumps({"next_cursor": next_cursor, **more})
    return f'{{"data":[{",".join(items)}],{tail[1:]}'


def flat(row: EventRow) -> str:
    """A log or an eval as one object: `{"no", "step", "epoch", "loss", …}`."""
    head = _dumps({"no": row.no, "step": row.step, "epoch": row.epoch})
    data = row.data
    if any(name in data for name in _RESERVED):
        # The envelope's own win: a metric that is called like them would otherwise be there twice.
        data = _dumps({k: v for k, v in json.loads(data).items() if k not in ("no", "step", "epoch")})
    return head if data == "{}" else f"{head[:-1]},{data[1:]}"


def attempt(row: AttemptRow, sources: Sequence[SourceRow], names: Mapping[NodeId, str]) -> dict[str, Any]:
    return {
        "attempt": row.attempt,
        "ending": row.ending,
        "reason": row.reason,
        "placed_at": moment(row.placed_at),
        "claimed_at": moment(row.claimed_at),
        "running_at": moment(row.running_at),
        "ended_at": moment(row.ended_at),
        "running_s": row.running_ms / 1000,
        "error": loads(row.error),
        "result": loads(row.result),
        "nodes": [
            {
                "id": source.node,
                "name": names.get(source.node, source.node),
                "slots": source.slots,
                "gpus": loads(source.gpus),
                "events": source.watermark,
            }
            for source in sources
            if source.attempt == row.attempt
        ],
    }


def checkpoint(row: CheckpointRow) -> dict[str, Any]:
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
        "created_at": moment(row.created_at),
    }


def node(row: NodeRow, sources: Sequence[SourceRow], visible: Collection[JobId]) -> dict[str, Any]:
    mine = [source for source in sources if source.node == row.id]
    return {
        "id": row.id,
        "name": row.name,
        "state": node_state(row),
        "takes_work": row.takes_work,
        "message": row.why_not,
        "refused": row.refused,
        "exposed": row.exposed,
        "pool": row.pool,
        "slots": row.slots,
        "slots_used": sum(source.slots for source in mine),
        "gpus": loads(row.gpus),
        "jobs": sorted({source.job_id for source in mine if source.job_id in visible}),
        "versions": loads(row.versions),
        "catalogue_hash": row.catalogue_hash,
        "actions": ["drain"] if not (row.lost or row.draining or row.drain_requested) else [],
        "first_seen_at": moment(row.first_seen_at),
        "seen_at": moment(row.seen_at),
    }


def node_state(row: NodeRow) -> str:
    """up, draining, lost, or waiting: there, and not yet able to take work."""
    if row.lost:
        return "lost"
    if row.draining or row.drain_requested:
        return "draining"
    return "up" if row.takes_work else "waiting"


@lru_cache(maxsize=64)
def _actions(state: JobState, desired: Desired) -> str:
    return _dumps(actions(state, desired))


@lru_cache(maxsize=64)
def _moment(milliseconds: int | None) -> str:
    return _dumps(moment(milliseconds))


def _text(text: str | None) -> str:
    return "null" if text is None else json.dumps(text)


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
