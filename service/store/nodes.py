"""Statements about nodes and their catalogues."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from footplate.contract.errors import FootplateError, NotFound
from footplate.contract.ids import NodeId
from service.store import attempts
from service.store.mapping import columns_of, values_of
from service.store.row_types import NodeRow
from service.store.tables import catalogues as catalogue_table
from service.store.tables import nodes, sources

_COLUMNS = columns_of(nodes, NodeRow)
_GET = select(*_COLUMNS).where(nodes.c.id == bindparam("node_id"))
_ALL = select(*_COLUMNS).order_by(nodes.c.name, nodes.c.id)
_TO_DRAIN = select(nodes.c.id).where(nodes.c.drain_requested.is_(True)).order_by(nodes.c.id)
_HOLDING = select(sources.c.node).where(sources.c.ended_at.is_(None))
_REMOVABLE = (nodes.c.lost.is_(True), nodes.c.id.not_in(_HOLDING))
_INSERT = insert(nodes)


class NodeInUse(FootplateError):
    code = "node_in_use"
    status = 409
    title = "The node is in use"


def all_nodes(conn: Connection) -> list[NodeRow]:
    return [NodeRow(*row) for row in conn.execute(_ALL)]


def by_ids(conn: Connection, node_ids: Collection[NodeId]) -> list[NodeRow]:
    return [NodeRow(*row) for row in conn.execute(_ALL.where(nodes.c.id.in_(sorted(node_ids))))]


def to_drain(conn: Connection) -> tuple[NodeId, ...]:
    """Returns the nodes for which a user has requested a drain."""
    return tuple(NodeId(row.id) for row in conn.execute(_TO_DRAIN))


def find(conn: Connection, node_id: NodeId) -> NodeRow | None:
    row = conn.execute(_GET, {"node_id": node_id}).one_or_none()
    return NodeRow(*row) if row else None


def get(conn: Connection, node_id: NodeId) -> NodeRow:
    """Returns a node, or raises NotFound."""
    if (node := find(conn, node_id)) is None:
        raise NotFound(f"there is no node {node_id!r}", hint="GET /nodes lists them")
    return node


def insert_node(conn: Connection, row: NodeRow) -> None:
    conn.execute(_INSERT, values_of(row))


def change(conn: Connection, node_id: NodeId, **columns: Any) -> None:
    conn.execute(update(nodes).where(nodes.c.id == node_id).values(**columns))


def request_drain(conn: Connection, node_id: NodeId, *, drain: bool) -> NodeRow:
    """Requests a drain of the node, or withdraws the request. The node gets it with the reply to its next heartbeat."""
    get(conn, node_id)
    change(conn, node_id, drain_requested=drain)
    return get(conn, node_id)


def remove(conn: Connection, node_id: NodeId) -> NodeRow:
    """Deletes a lost node and returns its last row. Raises NotFound, and NodeInUse if it is alive or holds attempts.

    The next heartbeat of a deleted node makes its row again.
    """
    node = get(conn, node_id)
    if conn.execute(delete(nodes).where(nodes.c.id == node_id, *_REMOVABLE)).rowcount:
        return node
    node = get(conn, node_id)
    if ids := sorted({source.job_id for source in attempts.open_sources(conn, [node_id])}):
        why, hint = (f"holds attempts of {', '.join(ids)}", "wait until these attempts have ended or are declared lost")
    else:
        why, hint = "sends heartbeats", "stop its worker, and remove the node when `GET /nodes` shows it as lost"
    raise NodeInUse(f"node {node.name} ({node_id}) cannot be removed, because it {why}", hint=hint)


def mark_draining(conn: Connection, node_id: NodeId, boot: str) -> None:
    """Marks a node as draining, because one of its attempts has reported the drain before the node's own heartbeat.

    A drain that an operator has requested ends when the operator ends it, so it is not marked.
    """
    is_own_drain = (nodes.c.id == node_id, nodes.c.boot == boot, nodes.c.drain_requested.is_(False))
    conn.execute(update(nodes).where(*is_own_drain).values(draining=True))


def knows_catalogue(conn: Connection, digest: str) -> bool:
    query = select(catalogue_table.c.hash).where(catalogue_table.c.hash == digest)
    return conn.execute(query).one_or_none() is not None


def keep_catalogue(conn: Connection, digest: str, body: dict[str, Any], now: int) -> None:
    if not knows_catalogue(conn, digest):
        conn.execute(insert(catalogue_table), {"hash": digest, "body": json.dumps(body), "created_at": now})


def catalogues(conn: Connection) -> list[dict[str, Any]]:
    """Returns the different catalogues of all nodes that are not lost."""
    query = (
        select(catalogue_table.c.body)
        .where(catalogue_table.c.hash.in_(select(nodes.c.catalogue_hash).where(nodes.c.lost.is_(False))))
        .order_by(catalogue_table.c.hash)
    )
    return [json.loads(body) for body in conn.execute(query).scalars()]


def file_roots(conn: Connection) -> list[str | None]:
    """Returns the folders in which each node that is not lost looks for files, as JSON. None if it announces none."""
    return list(conn.execute(select(nodes.c.roots).where(nodes.c.lost.is_(False))).scalars())


def catalogues_of(conn: Connection, hashes: Collection[str]) -> dict[str, dict[str, Any]]:
    if not hashes:
        return {}
    query = select(catalogue_table.c.hash, catalogue_table.c.body).where(catalogue_table.c.hash.in_(list(hashes)))
    return {digest: json.loads(body) for digest, body in conn.execute(query)}


def prune(conn: Connection, before: int) -> None:
    """Deletes lost nodes that have sent no heartbeat since the time `before`, and catalogues that no node has."""
    conn.execute(delete(nodes).where(nodes.c.seen_at < before, *_REMOVABLE))
    used_hashes = select(nodes.c.catalogue_hash).where(nodes.c.catalogue_hash.is_not(None))
    conn.execute(delete(catalogue_table).where(catalogue_table.c.hash.not_in(used_hashes)))
