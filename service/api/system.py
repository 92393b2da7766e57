"""Routes about the service itself: components, schema, tickets, validation, health and metrics."""

from __future__ import annotations

import asyncio
from functools import cache

from fastapi import APIRouter, Request
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.body import read_json
from footplate.contract.components import GROUPS
from footplate.contract.errors import FootplateError, InvalidSpec
from footplate.contract.lifecycle import JobState
from footplate.contract.resources import jobs as jobs_resources
from footplate.contract.resources.jobs import Validation
from footplate.contract.resources.operations import Health, Ticket
from footplate.contract.spec import Accepted, JobSpec
from footplate.contract.spec_schema import job_schema as schema_of_spec
from footplate.contract.warnings import warnings_of
from service import readiness
from service.api.jobs import SPEC_BODY, accept_for, require_all
from service.api.views import node_state
from service.auth import TICKET_SECONDS
from service.callers import Scope, needs
from service.deps import Services, StrictRoute, in_thread_if_large, json_response, read_body, services_of
from service.jobs import start_checkpoint
from service.jobs.needs import Needs
from service.jobs.place import load_capacities
from service.jobs.placement import Placement, explain
from service.prometheus_metrics import CONTENT_TYPE
from service.redis_client import Numbers
from service.store import jobs, nodes

router = APIRouter(route_class=StrictRoute, tags=["service"])


@router.post(
    "/jobs/validate",
    summary="Check a spec as POST /jobs does, without creating a job",
    openapi_extra=SPEC_BODY,
)
async def validate_job(request: Request) -> Validation:
    services = services_of(request)
    raw = await read_body(request)
    accepted = await in_thread_if_large(len(raw), lambda: accept_for(services, read_json(raw)))
    await require_all(services, accepted)
    needs = Needs.of(accepted.spec)
    spec, placement = await services.db.read(lambda conn: (_pinned(conn, accepted), _placement(conn, needs)))
    return Validation(
        valid=True,
        spec=spec.as_json(),
        # Without max_steps, the steps depend on the size of the data, which only nodes read.
        steps=spec.training.max_steps if spec.training.max_steps > 0 else None,
        parameters=None,
        placement=placement,
        warnings=tuple(warnings_of(accepted)),
    )


def _pinned(conn: Connection, accepted: Accepted) -> JobSpec:
    """Returns the spec with the id of the checkpoint from which the job would start, in place of latest or best."""
    spec = accepted.spec
    try:
        start = start_checkpoint.find(conn, spec.project, spec)
    except InvalidSpec as invalid:
        raise accepted.refusal(invalid.problems) from invalid
    return start.pinned(spec) if start else spec


def _placement(conn: Connection, needs: Needs) -> jobs_resources.Placement:
    capacities = load_capacities(conn)
    outcome = explain(needs, capacities)
    if not isinstance(outcome, Placement):
        return jobs_resources.Placement(waits=True, reason=outcome.reason, node=None, message=outcome.message)
    names_by_id = {capacity.node: capacity.name for capacity in capacities}
    names = [names_by_id[share.node] for share in outcome.shares]
    message = f"would start now on {', '.join(names)}"
    return jobs_resources.Placement(waits=False, reason="placed", node=names[0], message=message)


@router.get("/components", summary="What a spec may name, with the schema of its arguments")
async def list_components(request: Request) -> Response:
    """Returns components by group. All groups are empty until a node has announced its components."""
    catalogue = services_of(request).catalogues.current
    return json_response(catalogue.as_json() if catalogue else {group: {} for group in GROUPS})


@router.get("/schema/job", summary="JSON Schema of a job's spec, short forms included")
async def job_schema(request: Request) -> Response:
    return Response(await asyncio.to_thread(_job_schema), 200, {"Cache-Control": "max-age=60"}, "application/json")


@cache
def _job_schema() -> bytes:
    """Returns the schema, which is made once. Callers use a thread, because making the schema takes 50 ms."""
    return bytes(json_response(schema_of_spec()).body)


@router.post(
    "/tickets",
    status_code=201,
    summary="A one-time ticket for a browser's websocket or download: ?ticket=…",
)
@needs(Scope.READ)
async def create_ticket(request: Request) -> Ticket:
    services = services_of(request)
    return Ticket(ticket=await services.gatekeeper.ticket(services.caller), expires_in_s=TICKET_SECONDS)


@router.get("/livez", summary="The process answers", response_model_exclude_unset=True)
async def livez(request: Request) -> Health:
    return Health(status="ok")


@router.get(
    "/readyz",
    summary="Readiness: 503 without SQL; any other part that is down is listed as degraded",
    responses={503: {"model": Health}},
)
async def readyz(request: Request, response: Response) -> Health:
    services = services_of(request)
    try:
        cluster = await services.db.read(readiness.of_sql)
    except FootplateError as error:
        response.status_code = 503
        response.headers["Retry-After"] = "2"
        return Health(status="unavailable", degraded=("database",), details={"database": error.message})
    details = await readiness.degraded(services, cluster)
    return Health(status="degraded" if details else "ok", degraded=tuple(details), details=details)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    responses={200: {"content": {"text/plain": {}}}},
)
@needs(Scope.READ, everywhere=True)
async def prometheus(request: Request) -> Response:
    services = services_of(request)
    control = await services.control() or {}
    return Response(await services.db.read(_numbers, services, control), media_type=CONTENT_TYPE)


def _numbers(conn: Connection, services: Services, control: Numbers) -> bytes:
    node_rows = nodes.all_nodes(conn)
    states = dict.fromkeys(("up", "waiting", "draining", "lost"), 0)
    for node in node_rows:
        states[node_state(node)] += not node.has_left
    counts = jobs.state_counts(conn)
    slots = sum(node.slots for node in node_rows if node.takes_work)
    every_state: dict[str, int] = {**dict.fromkeys(JobState, 0), **counts}
    return services.meters.render(every_state, jobs.waiting_counts(conn), states, slots, control)
