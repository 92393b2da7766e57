"""Spans of an attempt, which OpenTelemetry's own exporter sends to a collector on a socket."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from footplate.contract.events import DoneData, Ending, Failure, Kind
from footplate.contract.ids import ClaimId, Fence, new_claim_id, new_job_id
from footplate.contract.messages import Grant
from tests.support.collector import attributes_of, collecting
from tests.support.factories import make_spec
from worker.tracing import Traces, Untraced

TRACE, ATTEMPT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def granted(traceparent: str | None = f"00-{TRACE}-{ATTEMPT}-01", **more: Any) -> Grant:
    return Grant(
        job=new_job_id(), attempt=2, fence=Fence(2), claim=ClaimId(new_claim_id()), spec=make_spec().as_json(),
        beat_seconds=2, traceparent=traceparent, **more,
    )  # fmt: skip


def event(kind: Kind, step: int | None = None, **data: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, "data": data}


def test_an_attempt_is_a_span_with_a_child_span_for_each_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "the-nodes")
        traces = Traces({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
        grant = granted(source=1, nodes=2)

        spans = traces.of(grant, "node-7", time.time_ns() - 1_000_000)
        spans.begin_phase("rendezvous")
        spans.begin_phase("launch")
        spans.add_events([event(Kind.LINE, text="hello"), event(Kind.STATE, state="running"), event(Kind.PROGRESS, 21)])
        spans.add_events([event(Kind.PROGRESS, 22), event(Kind.CHECKPOINT, 30, status="committed", bytes=77, path="x")])
        failure = Failure(code="nan_loss", message="the loss is NaN")
        spans.record_outcome(DoneData(ending=Ending.FAILED, reason="error", error=failure))
        spans.close()
        traces.close()

    result = collector.of(TRACE)
    assert list(result) == ["claim", "rendezvous", "launch", "first step", "training", "deliver", "supervise"]
    whole = result["supervise"]
    assert whole.parent_span_id.hex() == ATTEMPT
    assert result["first step"].parent_span_id == result["training"].span_id
    phases = [result[name] for name in ("claim", "rendezvous", "launch", "training", "deliver")]
    assert {phase.parent_span_id for phase in phases} == {whole.span_id}
    begins = [phase.start_time_unix_nano for phase in phases]
    assert begins == [whole.start_time_unix_nano, *(phase.end_time_unix_nano for phase in phases[:-1])]
    assert attributes_of(result["first step"]) == {"footplate.step": 21}
    assert [attributes_of(item) for item in result["training"].events] == [
        {"footplate.status": "committed", "footplate.bytes": 77, "footplate.step": 30}
    ]
    about = attributes_of(whole)
    assert (about["footplate.job"], about["footplate.attempt"], about["footplate.source"]) == (grant.job, 2, 1)
    assert (about["footplate.node"], about["footplate.reason"]) == ("node-7", "error")
    assert (whole.status.message, result["training"].status.message) == ("nan_loss", "nan_loss")
    sender = collector.resources()[0]
    assert (sender["service.name"], sender["footplate.role"]) == ("the-nodes", "node")


def test_an_untraced_or_unsampled_job_sends_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        traces = Traces({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})

        for traceparent in (None, f"00-{TRACE}-{ATTEMPT}-00"):
            traces.of(granted(traceparent), "one", time.time_ns()).close()
        traces.close()

    assert collector.spans == {}


def test_without_an_endpoint_no_span_is_recorded() -> None:
    assert type(Traces({}).of(granted(), "one", time.time_ns())) is Untraced


def test_an_unsupported_trace_protocol_is_logged_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Traces({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})

    assert "use http/protobuf, at port 4318" in caplog.text
