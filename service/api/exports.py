"""The route that exports the model of a checkpoint in a form that other programs can load."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from footplate.contract.fields import Group
from footplate.contract.resources.jobs import Job
from footplate.contract.spec_parts import CheckpointName
from service.api import views
from service.api.documented import documented_body
from service.api.views import etag
from service.deps import LARGE, JobPath, StrictRoute, in_thread_if_large, job_id, read_model, services_of
from service.jobs.serving import export_spec, find, start_export
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


class NewExport(Group):
    checkpoint: CheckpointName | None = None
    """"latest", "best" or a checkpoint's id. null means the final model of the job."""
    merge: bool = False
    """Merges the model's adapters into its weights, so that the model can be loaded without them."""


@router.post(
    "/jobs/{job}/export",
    status_code=202,
    summary="Write a checkpoint's model, tokenizer and card to the outputs of a new job",
    responses={409: {}},
    **documented_body(NewExport, {"checkpoint": "latest"}),
)
async def export_job(request: Request, response: Response, job: JobPath) -> Job:
    """Returns the job that exports. Its outputs can be downloaded once it has succeeded."""
    services = services_of(request)
    body = await read_model(request, NewExport)
    served = await services.db.read(find, project=services.project, job_id=job_id(job), name=body.checkpoint)
    spec = await in_thread_if_large(LARGE, lambda: export_spec(served, merge=body.merge))
    row = await services.db.write(start_export, served=served, spec=spec, now=now_ms(), by=services.caller.by)
    services.wake_control()
    response.headers.update({"Location": f"/jobs/{row.id}", "ETag": etag(row.version)})
    return views.job(row)
