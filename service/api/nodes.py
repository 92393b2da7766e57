"""The nodes: what they have, what they run, and making one go empty."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from contract.errors import NotFound
from contract.fields import Group
from contract.ids import NodeId, is_id
from service.api import shapes, views
from service.deps import StrictRoute, json_response, read_model, services_of
from service.store import attempts, nodes

router = APIRouter(route_class=StrictRoute, tags=["nodes"])


class Drain(Group):
    drain: bool = True
    """false takes it back: the node gets work again."""


@router.get("/nodes", operation_id="list_nodes", summary="Every node", **shapes.answers(shapes.NodeList))
async def list_nodes(request: Request) -> Response:
    services = services_of(request)
    rows, sources = await services.db.read(lambda conn: (nodes.everyone(conn), attempts.open_sources(conn)))
    return json_response({"data": [views.node(row, sources) for row in rows], "next_cursor": None})


@router.post(
    "/nodes/{node}/drain",
    status_code=202,
    operation_id="drain_node",
    summary="Give it no more work; its jobs save and continue elsewhere",
    **shapes.answers(shapes.Node, 202),
    **shapes.takes(Drain),
)
async def drain_node(request: Request, node: str) -> Response:
    services = services_of(request)
    given = await read_model(request, Drain)
    if not is_id(node, "node"):
        raise NotFound(f"there is no node {node!r}", hint="GET /nodes lists them")
    row = await services.db.write(partial(nodes.request_drain, node_id=NodeId(node), drain=given.drain))
    sources = await services.db.read(attempts.open_sources)
    services.poke()
    return json_response(views.node(row, sources), 202)
