"""The results file of a job: its metrics as CSV, with OpenAI's columns. It is written when somebody reads it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass

from sqlalchemy import Connection

from footplate.contract.events import METRIC_KINDS
from footplate.contract.ids import JobId
from service.api.openai.from_job import numbers, seconds
from service.api.openai.models import FileObject
from service.deps import Services
from service.store import events, jobs
from service.store.rows import EventRow, JobRow

COLUMNS = {
    "train_loss": "train_loss",
    "train_accuracy": "train_mean_token_accuracy",
    "valid_loss": "valid_loss",
    "valid_mean_token_accuracy": "valid_mean_token_accuracy",
}
"""The columns after `step`, each with its name in events."""
AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Results:
    job: JobRow
    content: bytes

    def about(self, file: str) -> FileObject:
        return FileObject(
            id=file,
            bytes=len(self.content),
            created_at=seconds(self.job.finished_at or self.job.updated_at),
            filename="step_metrics.csv",
            purpose="fine-tune-results",
        )


async def results_of(services: Services, job_id: JobId) -> Results:
    """Returns the metrics of a job so far. Raises NotFound, also for another project's job."""
    row, last_no = await services.db.read(lambda conn: jobs.get(conn, services.project, job_id)), 0
    steps: dict[int, dict[str, float]] = {}
    while page := await services.db.read(lambda conn, after=last_no: _page(conn, job_id, after)):  # type: ignore[misc]
        for event in page:
            steps.setdefault(event.step or 0, {}).update(numbers(json.loads(event.data)))
        last_no = page[-1].no
    return Results(row, _csv(steps))


def _page(conn: Connection, job_id: JobId, after: int) -> list[EventRow]:
    return events.after(conn, job_id, after, AT_ONCE, METRIC_KINDS)


def _csv(steps: dict[int, dict[str, float]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", *COLUMNS])
    for step in sorted(steps):
        values = [steps[step].get(name) for name in COLUMNS.values()]
        if any(value is not None for value in values):
            writer.writerow([step, *values])
    return text.getvalue().encode()
