"""Tests the size limits of a job's row, which keep lists fast. One note reports what was left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from service.api import views
from tests.conformance.acting import Stage

MOST_BYTES = 128 * 1024


def shown_job(stage: Stage, job: JobId) -> dict[str, Any]:
    """Returns the job as the API shows it, and asserts that its JSON is small."""
    text = views.job(stage.job(job)).model_dump_json()
    assert len(text) < MOST_BYTES
    content: dict[str, Any] = json.loads(text)
    return content


def notes(stage: Stage, job: JobId) -> list[str]:
    return [json.loads(row.data)["message"] for row in stage.events(job, ["note"])]


def test_metrics_that_are_huge_texts_stay_in_events_and_out_of_the_jobs_row(stage: Stage) -> None:
    job, worker = stage.running()
    before = len(notes(stage, job))
    for first in range(0, 300, 15):
        huge = {f"text{n}": "x" * 60_000 for n in range(first, first + 15)}
        worker.send(worker.write(Kind.LOG, {"loss": 0.5, **huge}, first + 1))

    metrics = shown_job(stage, job)["metrics"]

    assert metrics == {"loss": 0.5}
    assert len(notes(stage, job)) == before + 1
    assert len(stage.events(job, ["log"])) == 20


@pytest.mark.parametrize(
    ("metrics", "kept_names"),
    [
        ({"a": 1, "b": 0.5, "c": "x" * 200, "d": True}, ["a", "b", "c", "d"]),
        ({"a": [1], "b": {"c": 1}, "d": "x" * 201, "e" * 201: 1, "f": 2}, ["f"]),
        ({f"n{n}": n for n in range(600)}, [f"n{n}" for n in range(500)]),
    ],
)
def test_the_row_of_a_job_keeps_numbers_and_short_text(
    stage: Stage, metrics: dict[str, Any], kept_names: list[str]
) -> None:
    job, worker = stage.running()
    before = len(notes(stage, job))

    worker.send(worker.write(Kind.EVAL, metrics, 1), worker.write(Kind.EVAL, metrics, 2))
    worker.send(worker.write(Kind.LOG, {"loss": 1.0}, 3))

    assert list(shown_job(stage, job)["metrics"])[: len(kept_names)] == kept_names
    assert len(notes(stage, job)) - before == (len(kept_names) < len(metrics))


def test_the_names_and_texts_of_a_row_have_a_total_limit(stage: Stage) -> None:
    job, worker = stage.running()
    worker.send(worker.write(Kind.LOG, {f"{n:03}{'n' * 197}": "é" * 200 for n in range(500)}, 1))
    worker.send(worker.write(Kind.CHECKPOINT, {"status": "failed", "path": "x"}, 1))

    shown_job(stage, job)


@pytest.mark.own_statement
@pytest.mark.parametrize(
    "wrong", [{"step": 10**30}, {"step": -5}, {"max_steps": 1e30}, {"epoch": -1}, {"eta_s": 1e30}, {"eta_s": "NaN"}]
)
def test_impossible_progress_is_not_shown(stage: Stage, wrong: dict[str, Any]) -> None:
    job, worker = stage.running()
    good = {"step": 3, "max_steps": 10, "epoch": 0.5, "eta_s": 2.0}
    worker.send(worker.write(Kind.PROGRESS, {**good, "more": "x" * 60_000}, 3))

    worker.send(worker.write(Kind.PROGRESS, good | wrong, 4))

    assert shown_job(stage, job)["progress"] == good


def test_a_huge_error_is_cut_in_the_row(stage: Stage) -> None:
    job, worker = stage.running()
    huge = "x" * 200_000
    failure = {"code": "error", "message": huge, "hint": huge, "traceback": f"{huge}the last line"}

    worker.ends("failed", "error", error=failure)

    assert shown_job(stage, job)["error"]["traceback"].endswith("the last line")


def test_a_huge_result_is_cut_to_the_limit_of_the_row(stage: Stage) -> None:
    job, worker = stage.running()

    worker.ends("finished", result={"final": {"loss": 1.0}, "huge": "x" * 200_000, "last": 1})

    result = shown_job(stage, job)["result"]
    assert set(result) == {"final", "left_out"}
