"""Routes that list the nodes, and that drain or remove one."""

from __future__ import annotations

from fastapi import APIRouter, Request
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.errors import NotFound
from footplate.contract.fields import Group
from footplate.contract.ids import JobId, NodeId, is_id
from footplate.contract.resources.operations import Node, NodeList
from service.api import views
from service.api.documented import documented_body
from service.callers import Scope, needs
from service.deps import Services, StrictRoute, read_model, services_of
from service.store import attempts, jobs, nodes

router = APIRouter(route_class=StrictRoute, tags=["nodes"])


class Drain(Group):
    drain: bool = True
    """Give the node no more work. `false` ends the drain, and the node gets work again."""


@router.get("/nodes", summary="Every node")
async def list_nodes(request: Request) -> NodeList:
    services = services_of(request)
    rows, sources, visible = await services.db.read(
        lambda conn: (nodes.all_nodes(conn), attempts.open_sources(conn), _visible(conn, services))
    )
    may_change = services.caller.may(Scope.ADMIN) and services.caller.is_everywhere
    data = tuple(views.node(row, sources, visible, may_change=may_change) for row in rows)
    return NodeList(data=data, next_cursor=None)


def _visible(conn: Connection, services: Services) -> frozenset[JobId]:
    """Returns the active jobs that this caller may see. Other jobs only count as used slots of their node."""
    project = services.caller.limit
    return frozenset(job.id for job in jobs.active(conn) if project in (None, job.project))


@router.post(
    "/nodes/{node}/drain",
    status_code=202,
    summary="Drain a node: it gets no more work, and its jobs save and continue elsewhere",
    **documented_body(Drain, {"drain": True}),
)
@needs(Scope.ADMIN, everywhere=True)
async def drain_node(request: Request, node: str) -> Node:
    services = services_of(request)
    body = await read_model(request, Drain)
    row = await services.db.write(nodes.request_drain, node_id=_node_id(node), drain=body.drain)
    sources, visible = await services.db.read(lambda conn: (attempts.open_sources(conn), _visible(conn, services)))
    services.wake_control()
    services.audit(f"node {row.id} ({row.name}): drain={body.drain}")
    return views.node(row, sources, visible, may_change=True)


@router.delete(
    "/nodes/{node}",
    status_code=204,
    summary="Remove a lost node from the list",
    responses={409: {}},
)
@needs(Scope.ADMIN, everywhere=True)
async def remove_node(request: Request, node: str) -> Response:
    """Removes a lost node, so that no list, metric or alert counts it any more.

    The answer is 409 while the node sends heartbeats or holds attempts. If a removed node sends a heartbeat, it is
    listed again and gets work.
    """
    services = services_of(request)
    row = await services.db.write(nodes.remove, node_id=_node_id(node))
    services.audit(f"node {row.id} ({row.name}) removed")
    return Response(status_code=204)


def _node_id(text: str) -> NodeId:
    if not is_id(text, "node"):
        raise NotFound(f"there is no node {text[:80]!r}", hint="GET /nodes lists them")
    return NodeId(text)
