from __future__ import annotations
from typing import Any
from sqlalchemy import Connection
from contract.ids import NodeId
from service.store.rows import NodeRow, SourceRow


def everyone(conn: Connection) -> list[NodeRow]:
    raise NotImplementedError


def get(conn: Connection, node_id: NodeId) -> NodeRow:
    """Raises NotFound."""
    raise NotImplementedError


def request_drain(conn: Connection, node_id: NodeId, *, drain: bool) -> NodeRow:
    raise NotImplementedError


def occupied(conn: Connection) -> list[SourceRow]:
    """What every node's slots are taken by: the open sources of all jobs."""
    raise NotImplementedError


def catalogues(conn: Connection) -> list[dict[str, Any]]:
    """The catalogue of every node that is not lost, each once."""
    raise NotImplementedError
