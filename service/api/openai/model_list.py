"""OpenAI's routes for models: the operator's base models, and the models of jobs that have succeeded.

The list leaves out models that cannot read texts, because OpenAI's clients offer every listed model.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from sqlalchemy import Connection

from footplate.contract.errors import Forbidden
from footplate.contract.ids import JobId, is_id
from footplate.contract.lifecycle import JobState
from service import base_models
from service.api.jobs import remove
from service.api.openai import from_job
from service.api.openai.jobs import UnknownModel
from service.api.openai.model_names import ModelName, read_model_name
from service.api.openai.models import Deleted, ListPage, ModelObject
from service.deps import Services, StrictRoute, services_of
from service.serving import end_sessions
from service.store import checkpoints, jobs
from service.store.job_list import JobFilter, newest_trainings
from service.store.row_types import JobRow
from service.store.stored_spec import read_spec

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

ONE = "/v1/models/{model:path}"
OPERATOR = "operator"
READ_TEXTS = ("hf/", "st/")
"""The beginnings of the names of components that are models of transformers or sentence-transformers."""
MOST_TUNED = 1000
"""The most models of jobs in the list, because OpenAI's list has no pages."""


@router.get("/v1/models")
async def list_models(request: Request) -> ListPage[ModelObject]:
    services = services_of(request)
    job_filter = JobFilter(services.project, states=(JobState.SUCCEEDED,))
    rows = await services.db.read(newest_trainings, job_filter, after=None, limit=MOST_TUNED, matches=_reads_texts)
    bases = [_base(name) for name in services.settings.base_models]
    return ListPage.of([*bases, *map(from_job.model, rows)], has_more=False)


@router.get(ONE)
async def get_model(request: Request, model: str) -> ModelObject:
    services = services_of(request)
    if (tuned_model := _named(services, model)) is None:
        return _base(model)
    return await services.db.read(_tuned, project=services.project, name=tuned_model)


@router.delete(ONE)
async def delete_model(request: Request, model: str) -> Deleted:
    """Deletes the model's job, with its history, checkpoints and outputs. Serving sessions of the job are ended."""
    services = services_of(request)
    if (tuned_model := _named(services, model)) is None:
        detail = f"{model[:100]!r} is a base model, and cannot be deleted by a request"
        raise Forbidden(detail, hint="ask the operator to remove it from the file of FOOTPLATE_OPENAI_MODELS")
    await services.db.read(_tuned, project=services.project, name=tuned_model)
    if tuned_model.step is not None:
        hint = f"send DELETE /jobs/{tuned_model.job}/checkpoints/…"
        raise Forbidden(f"{model[:200]!r} is a checkpoint of a job, and cannot be deleted as a model", hint=hint)
    await end_sessions(services, tuned_model.job)
    await remove(services, tuned_model.job)
    return Deleted(id=model, object="model")


def _reads_texts(row: JobRow) -> bool:
    """Returns True if the job trained a model of these libraries. Chats, completions or embeddings can use it."""
    spec = read_spec(row.spec)
    model = spec["model"]
    return model is not None and model["use"].startswith(READ_TEXTS) and spec["data"]["train"] is not None


def _base(name: str) -> ModelObject:
    return ModelObject(id=name, created=0, owned_by=OPERATOR)


def _named(services: Services, text: str) -> ModelName | None:
    """Returns the job and the step that a fine-tuned model's name contains, or None for the name of a base model.

    A job's id counts as a name, too. Raises UnknownModel for any other text.
    """
    name = ModelName(JobId(text), None) if is_id(text, "job") else read_model_name(text)
    if name is None and base_models.find(services.settings.base_models, text) is None:
        raise UnknownModel(f"there is no model {text[:100]!r}", hint="models.list() lists them")
    return name


def _tuned(conn: Connection, project: str, name: ModelName) -> ModelObject:
    row = jobs.find(conn, project, name.job)
    if row is not None and name.step is None:
        has_model = row.state is JobState.SUCCEEDED
    else:
        rows = checkpoints.of_job(conn, name.job) if row is not None else []
        has_model = any(item.step == name.step and item.status == checkpoints.COMMITTED for item in rows)
    if row is None or not has_model:
        raise UnknownModel(f"there is no model of job {name.job!r} in this project", hint="models.list() lists them")
    return from_job.model(row, name.step)
