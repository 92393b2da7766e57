"""The route by which a run on other machines reports, in the protocol of Kubeflow's Trainer."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import ConfigDict, Field

from footplate.contract.fields import Group, Many, Slug
from footplate.contract.ids import JobId
from footplate.contract.resources.jobs import Job
from service.api import views
from service.api.documented import documented_body
from service.deps import StrictRoute, read_model, services_of
from service.events.external import Report, report
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["jobs"])

RunPath = Annotated[Slug, Path(description="A name for the run. Runs at the same time need different names.")]


EXAMPLE = {
    "trainerStatus": {
        "progressPercentage": 40,
        "estimatedRemainingSeconds": 600,
        "metrics": [{"name": "loss", "value": "0.31"}, {"name": "current_step", "value": "400"}],
    }
}


class _Lenient(Group):
    """A part of a report. Unknown fields are ignored, because nobody would see an error: reporters ignore answers."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": True})


class ReportedMetric(_Lenient):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    value: Annotated[str, Field(max_length=200)]
    """The value as text. The metrics `current_step`, `total_steps` and `current_epoch` are the run's progress."""


class TrainerStatus(_Lenient):
    progressPercentage: Annotated[float, Field(ge=0, le=100)] | None = None
    """0 before the first step, and 100 at the end of the run."""
    estimatedRemainingSeconds: Annotated[float, Field(ge=0, lt=2**63)] | None = None
    metrics: Many[ReportedMetric] = ()
    """All metrics of the run so far, each with its latest value."""


class ExternalReport(_Lenient):
    trainerStatus: TrainerStatus


@router.post(
    "/external/{run}",
    summary="Report a run that trains on other machines. The first report creates a job for it",
    **documented_body(ExternalReport, EXAMPLE, required=True),
)
async def report_external(request: Request, run: RunPath) -> Job:
    """Takes the reports of transformers' KubeflowCallback. A report of 100 % ends the job."""
    services = services_of(request)
    news = report_of((await read_model(request, ExternalReport)).trainerStatus)
    row = await services.db.write(report, services.project, run, news, now_ms(), services.settings)
    services.changed(JobId(row.id))
    return views.job(row)


def report_of(status: TrainerStatus) -> Report:
    values = {metric.name: _value(metric.value) for metric in status.metrics}
    max_steps = _whole(values.pop("total_steps", None))
    epoch = values.pop("epoch", None)
    epoch = values.pop("current_epoch", epoch)
    return Report(
        percent=status.progressPercentage,
        eta_s=status.estimatedRemainingSeconds,
        step=_whole(values.pop("current_step", None)),
        max_steps=max_steps,
        epoch=epoch if isinstance(epoch, int | float) and 0 <= epoch < 2**63 else None,
        metrics=values,
    )


def _value(text: str) -> Any:
    """Returns the number in a text, or the text if it has none."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _whole(value: Any) -> int | None:
    """Returns a number of steps. Transformers sends -1 for a number that is not known."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return int(value) if is_number and 0 <= value < 2**63 else None
