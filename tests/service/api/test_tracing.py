"""Tests traces that OpenTelemetry's exporter sends to a collector on a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from footplate.contract import tracing as contract_tracing
from footplate.contract.ids import Fence, JobId
from footplate.contract.tracing import of_attempt, parts_of, read_trace_settings
from service.spans import JobSpans, Tracing
from service.store import tables, traces
from service.store.mapping import values_of
from service.store.row_types import AttemptRow
from service.store.times import now_ms
from tests.service.api.conftest import SPEC, Api, Serve
from tests.support.collector import Collector, attributes_of, collecting
from tests.support.processes import at_ease

THEIRS = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as result:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", result.url)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        monkeypatch.setattr("service.spans.LAST_SECONDS", at_ease(60))
        yield result


@pytest.mark.own_statement
async def test_a_trace_continues_from_the_post_to_the_end_of_the_attempt(
    serve: Serve, database_url: str, collector: Collector
) -> None:
    tracing = Tracing("all")
    api = await serve(database_url, around=tracing.around)
    spans = JobSpans(tracing, api.db)
    answer = await api.client.post("/jobs", json=SPEC, headers={"traceparent": f"00-{THEIRS}-{PARENT}-01"})
    job = JobId(answer.json()["id"])
    await attempted(api, job)
    await api.client.get("/jobs/job_" + "0" * 32 + "/spec?project=default")
    await api.client.get("/livez")

    for _ in range(2):
        spans.changed.add(job)
        await spans.refresh()
    await tracing.close()

    result = collector.spans
    assert set(result) == {"POST /jobs", "GET /jobs/{job}/spec", "wait", "attempt 1", "claim", "start", "train"}
    assert sum(len(request.resource_spans[0].scope_spans[0].spans) for request in collector.requests) == 7, "each once"
    assert set(collector.paths) == {"/v1/traces"}
    post, attempt = result["POST /jobs"], result["attempt 1"]
    ours = {name for name, span in result.items() if span.trace_id.hex() == THEIRS}
    assert ours == set(result) - {"GET /jobs/{job}/spec"}
    assert post.parent_span_id.hex() == PARENT
    assert result["wait"].parent_span_id == attempt.parent_span_id == post.span_id
    assert {result[name].parent_span_id for name in ("claim", "start", "train")} == {attempt.span_id}
    report = await api.db.read(partial(traces.of_job, job_id=job))
    assert report == f"00-{THEIRS}-{post.span_id.hex()}-01"
    assert parts_of(of_attempt(report, job, 1)) == (THEIRS, attempt.span_id.hex(), "01"), "the parent of nodes' spans"
    assert of_attempt(report, job, 2) != of_attempt(report, job, 1)
    assert [result[name].start_time_unix_nano for name in ("claim", "start", "train")] == [
        attempt.start_time_unix_nano, result["claim"].end_time_unix_nano, result["start"].end_time_unix_nano,
    ]  # fmt: skip
    assert result["train"].end_time_unix_nano == attempt.end_time_unix_nano
    about = attributes_of(attempt)
    assert (about["footplate.job"], about["footplate.ending"], about["footplate.reason"]) == (job, "failed", "error")
    assert (attempt.status.code, attempt.status.message) == (2, "oom")
    assert attributes_of(post)["http.response.status_code"] == 201
    assert attributes_of(post)["footplate.request_id"] == answer.headers["x-request-id"]
    assert attributes_of(result["GET /jobs/{job}/spec"])["url.path"].endswith("/spec"), (
        "the path must not include the query"
    )
    resource = collector.resources()[0]
    assert (resource["service.name"], resource["deployment.environment"]) == ("footplate", "test")


async def attempted(api: Api, job: JobId) -> None:
    """Records an attempt that was placed and claimed, and ran until it failed."""
    at = now_ms()
    row = AttemptRow(
        job,
        1,
        Fence(1),
        at,
        at + 5,
        at + 30,
        at + 500,
        "failed",
        "error",
        '{"code": "oom"}',
        None,
        470,
    )
    await api.db.write(lambda conn: conn.execute(tables.attempts.insert(), values_of(row)))


async def test_unsampled_jobs_and_jobs_from_before_tracing_send_no_spans(
    serve: Serve, sqlite_url: str, collector: Collector
) -> None:
    tracing = Tracing("api")
    api = await serve(sqlite_url, around=tracing.around)
    before = await (await serve(sqlite_url)).submit()
    spans = JobSpans(tracing, api.db)
    answer = await api.client.post("/jobs", json=SPEC, headers={"traceparent": f"00-{THEIRS}-{PARENT}-00"})
    jobs = [before, JobId(answer.json()["id"])]
    for job in jobs:
        await attempted(api, job)

    spans.changed.update(jobs)
    await spans.refresh()
    await tracing.close()

    assert collector.spans == {}


async def test_an_unreachable_collector_delays_no_request(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("service.spans.LAST_SECONDS", 0.2)
    tracing = Tracing("api")
    api = await serve(sqlite_url, around=tracing.around)

    assert (await api.client.post("/jobs", json=SPEC)).status_code == 201

    await asyncio.wait_for(tracing.close(), at_ease(20))


@pytest.mark.parametrize(
    ("environ", "is_on", "wrong"),
    [
        ({}, False, None),
        ({"OTEL_SERVICE_NAME": "x"}, False, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True, None),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False, None),
        ({"OTEL_TRACES_EXPORTER": "console"}, False, "use otlp or none"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False, "port 4318"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp"}, True, "metrics are at /metrics"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_PROPAGATORS": "b3"}, True, "by traceparent"),
        ({"FASTAPI_OTEL_AUTO_CONFIGURE": "true"}, False, "FastAPI's own traces are off"),
    ],
)
def test_trace_settings_take_effect_or_are_named_as_wrong(
    environ: dict[str, str], is_on: bool, wrong: str | None
) -> None:
    result = read_trace_settings(environ)

    assert result.is_on is is_on
    assert (result.wrong is None) if wrong is None else (wrong in (result.wrong or ""))


async def test_readyz_names_the_extra_to_install_if_the_tracing_packages_are_missing(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_tracing, "NEEDED", ("opentelemetry.nowhere.trace",))
    result = read_trace_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
    api = await serve(sqlite_url, untraced=result.wrong)

    body = (await api.client.get("/readyz")).json()

    assert not result.is_on
    assert "tracing" in body["degraded"]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in body["details"]["tracing"]
    assert "pip install 'footplate[otel]'" in body["details"]["tracing"]
