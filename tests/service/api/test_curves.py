"""Tests the routes that return metrics of one or several jobs as curves and as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
import threading
from typing import Any

import httpx2
import pytest

from footplate import AsyncClient
from footplate.contract.events import Kind
from footplate.contract.ids import JobId, new_job_id
from footplate.contract.resources.history import MetricSummaryList, Series, SeriesList
from service.api import curves, listing
from service.events import series as events_series
from service.store.database import LONG_READER
from tests.conformance.acting import Stage, Worker
from tests.conformance.test_curves import send_logs
from tests.service.api.conftest import KEY, SPEC, Api, Serve, each_case
from tests.service.api.test_keys import a_key, bearer


def trained(api: Api, rows: list[dict[str, Any]], **changes: Any) -> tuple[JobId, Worker]:
    """Returns a running job that has logged these rows, and its worker."""
    job, worker = Stage(api.db).running(**changes)
    send_logs(worker, rows)
    return job, worker


async def series(api: Api, job: str, query: str = "") -> list[dict[str, Any]]:
    answer = await api.client.get(f"/jobs/{job}/metrics/series?{query}")
    assert answer.status_code == 200, answer.text
    SeriesList.model_validate_json(answer.content)
    return list(answer.json()["data"])


async def rows(api: Api, job: str) -> list[dict[str, str]]:
    return rows_of(await api.client.get(f"/jobs/{job}/metrics/series?points=10", headers={"Accept": "text/csv"}))


def rows_of(answer: httpx2.Response) -> list[dict[str, str]]:
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(answer.text)))


async def test_a_summary_has_the_last_minimum_and_maximum_of_each_metric(both: Api) -> None:
    job, _ = trained(both, [{"loss": 3.0}, {"loss": float("nan")}, {"loss": 1.0}, {"loss": 2.0, "f1": 0.5}])

    answer = await both.client.get(f"/jobs/{job}/metrics/summary")

    f1, loss = MetricSummaryList.model_validate_json(answer.content).data
    assert (f1.name, f1.count, loss.count, loss.not_finite) == ("f1", 1, 4, 1)
    assert loss.min
    assert loss.max
    assert [(item.value, item.step) for item in (loss.last, loss.min, loss.max)] == [(2.0, 4), (1.0, 3), (3.0, 1)]


@pytest.mark.own_statement
async def test_the_list_includes_specs_and_summaries_as_far_as_they_fit(
    both: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [trained(both, [{"loss": 3.0, "f1": 0.5}])[0] for _ in range(3)]
    spec = (await both.client.get(f"/jobs/{jobs[0]}/spec")).json()
    summary = (await both.client.get(f"/jobs/{jobs[0]}/metrics/summary")).json()["data"]

    whole = (await both.client.get(f"/jobs?include=spec,summary&ids={','.join(jobs)}")).json()
    monkeypatch.setattr(listing, "MOST_SUMMARIES", 1)
    monkeypatch.setattr(listing, "MOST_SPEC_CHARACTERS", 1)
    some = (await both.client.get("/jobs?include=spec,summary")).json()

    assert (whole["specs"].keys(), whole["summaries"].keys()) == (set(jobs), set(jobs))
    assert (whole["specs"][jobs[0]], whole["summaries"][jobs[0]]) == (spec, summary)
    assert (list(some["specs"]), list(some["summaries"]), len(some["data"])) == (jobs[2:], jobs[2:], 3)


async def test_curves_are_columns_and_values_like_nan_are_text(both: Api) -> None:
    job, _ = trained(both, [{"loss": 1.0}, {"loss": float("inf")}, {"lr": 0.5}])

    loss, nothing = await series(both, job, "names=loss,los")
    by_epoch = await series(both, job, "x=epoch")

    assert (loss["x"], loss["y"], loss["exact"]) == ([1, 2], [1.0, "Infinity"], True)
    assert (nothing["name"], nothing["count"], nothing["x"]) == ("los", 0, [])
    assert [(curve["name"], curve["x"]) for curve in by_epoch] == [("loss", [0.01, 0.02]), ("lr", [0.03])]
    assert (await series(both, job, "x=time&names=lr"))[0]["x"][0].endswith("Z")


async def test_a_curve_over_epochs_has_the_step_of_each_of_its_points(both: Api) -> None:
    job, worker = Stage(both.db).running()
    for step, epoch in ((1, None), (2, 0.5), (3, None), (4, 1.0)):
        worker.send(worker.write(Kind.LOG, {"loss": float(step)}, step).model_copy(update={"epoch": epoch}))

    (by_epoch,) = await series(both, job, "x=epoch")
    (by_step,) = await series(both, job)

    assert (by_epoch["x"], by_epoch["y"], by_epoch["steps"]) == ([0.5, 1.0], [2.0, 4.0], [2, 4])
    assert (by_step["x"], by_step["steps"]) == ([1, 2, 3, 4], None)


async def test_a_metric_is_requested_by_a_name_with_commas_and_backslashes(both: Api) -> None:
    names = ["f1@0.5,0.9", "a\\b", "c\\,", "loss"]
    job, _ = trained(both, [dict.fromkeys(names, 1.0)])

    async with AsyncClient(both.url) as client:
        curves_of = (await client.jobs.get(job)).metrics.series
        curves_by_name = [await curves_of(name) for name in names]
        all_curves = await curves_of(*names)
    plain = await series(both, job, "names=loss,a%5Cb,x")

    assert [[(name, curve.y) for name, curve in curves_.items()] for curves_ in curves_by_name] == [
        [(name, (1.0,))] for name in names
    ]
    assert list(all_curves) == names
    assert [(curve["name"], curve["count"]) for curve in plain] == [("loss", 1), ("a\\b", 1), ("x", 0)]


async def test_several_jobs_are_compared_in_one_answer(both: Api) -> None:
    first, _ = trained(both, [{"loss": 1.0}] * 3)
    second, _ = trained(both, [{"loss": 2.0, "f1": 1.0}] * 2)

    answer = await both.client.get(f"/metrics/series?jobs={first},{second}&names=loss")

    result = answer.json()["data"]
    assert [(item["job"], item["name"], item["y"]) for item in result] == [
        (first, "loss", [1.0] * 3),
        (second, "loss", [2.0] * 2),
    ]
    every = (await both.client.get(f"/metrics/series?jobs={second},{first}")).json()["data"]
    assert [(row["job"], row["name"]) for row in every] == [(second, "f1"), (second, "loss"), (first, "loss")]


async def test_curves_are_read_and_encoded_in_parts_outside_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop serves other requests between two parts. No two parts run at the same time."""
    job, _ = trained(api, [{f"m{number}": float(step) for number in range(7)} for step in range(50)])
    parts: list[int] = []
    threads: set[str] = set()
    running: list[int] = []

    def read(*args: Any, **more: Any) -> list[Series]:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        running.append(1)
        assert len(running) == 1, "two parts are read at the same time"
        parts.append(len(args[2]) * args[3])
        read_curves = real(*args, **more)
        running.pop()
        return read_curves

    real = events_series.series
    monkeypatch.setattr(curves, "series", read)
    monkeypatch.setattr(curves, "POINTS_PER_READ", 30)
    answers = asyncio.gather(*(series(api, job, "points=10") for _ in range(2)), rows(api, job))

    json, other, table = await answers

    assert json == other
    assert [curve["name"] for curve in json] == [f"m{number}" for number in range(7)]
    assert [row["name"] for row in table] == [curve["name"] for curve in json for _ in curve["x"]]
    assert (max(parts), len(parts), threads) == (30, 9, {LONG_READER})


async def test_csv_is_sent_if_accepted_and_holds_no_spreadsheet_formula(api: Api) -> None:
    job, _ = trained(api, [{"loss": 1.5, "=cmd()": -2.0}, {"loss": float("-inf")}])
    path = f"/jobs/{job}/metrics"

    rows = rows_of(await api.client.get(f"{path}/series?names=loss", headers={"Accept": "text/csv"}))
    formula = rows_of(await api.client.get(f"{path}/series?names==cmd()", headers={"Accept": "text/csv, */*;q=0.1"}))
    summary = rows_of(await api.client.get(f"{path}/summary", headers={"Accept": "text/csv"}))
    json = await api.client.get(f"{path}/summary", headers={"Accept": "text/csv;q=0.5, application/json"})

    assert rows == [
        {"job": job, "name": "loss", "attempt": "1", "step": "1", "value": "1.5"},
        {"job": job, "name": "loss", "attempt": "1", "step": "2", "value": "-Infinity"},
    ]
    assert (formula[0]["name"], formula[0]["value"]) == ("'=cmd()", "-2.0")
    assert [(row["name"], row["last"], row["min"]) for row in summary] == [
        ("'=cmd()", "-2.0", "-2.0"),
        ("loss", "-Infinity", "1.5"),
    ]
    assert (json.headers["content-type"], json.headers["vary"]) == ("application/json", "Accept")


async def test_a_job_without_metrics_has_no_curves(api: Api) -> None:
    job = await api.submit()

    assert await series(api, job) == []
    assert (await api.client.get(f"/jobs/{job}/metrics/summary")).json() == {"data": [], "next_cursor": None}


@each_case(
    ("query", "pointer"),
    [
        ("points=9", "/query/points"),
        ("points=10001", "/query/points"),
        ("names=", "/query/names"),
        ("names=,", "/query/names"),
        ("x=steps", "/query/x"),
        ("first_step=-1", "/query/first_step"),
        ("name=loss", "/query/name"),
        ("points=10000&names=" + ",".join(map(str, range(21))), "/query/points"),
    ],
)
async def test_wrong_parameters_of_curves_are_refused_by_name(api: Api, query: str, pointer: str) -> None:
    job = await api.submit()

    answer = await api.client.get(f"/jobs/{job}/metrics/series?{query}")

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text


async def test_a_job_of_another_project_cannot_be_compared(serve: Serve, sqlite_url: str) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    mine, theirs = bearer(await a_key(api, "vision")), bearer(await a_key(api, "speech"))
    here = (await api.client.post("/jobs", json=SPEC, headers=mine)).json()["id"]
    there = (await api.client.post("/jobs", json=SPEC, headers=theirs)).json()["id"]

    foreign = await api.client.get(f"/metrics/series?jobs={here},{there}", headers=mine)
    missing = await api.client.get(f"/metrics/series?jobs={here},{(never := new_job_id())}", headers=mine)

    assert foreign.status_code == missing.status_code == 404
    assert foreign.json()["detail"].replace(there, "") == missing.json()["detail"].replace(never, "")
    assert (await api.client.get("/metrics/series?jobs=,", headers=mine)).status_code == 422
    many = ",".join(new_job_id() for _ in range(curves.MOST_JOBS + 1))
    assert (await api.client.get(f"/metrics/series?jobs={many}", headers=mine)).json()["code"] == "invalid_query"
