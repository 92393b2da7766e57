"""One trace from a program's own span to the end of its job, from four processes, in a collector."""

from __future__ import annotations

from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from footplate import Client
from tests.client.conftest import FAILING
from tests.support.collector import Collector, said
from tests.support.processes import at_ease, until
from tests.support.system import SHORT_TOY, System

OURS = {"POST /jobs", "wait", "attempt 1", "claim", "start", "train"}
A_NODE_S = {"supervise", "ask", "launch", "training", "first step", "hand over"}


def begun(trace: int) -> NonRecordingSpan:
    """A span of a program that sends its spans itself."""
    return NonRecordingSpan(SpanContext(trace, 0xF067AA0BA902B7, False, TraceFlags(TraceFlags.SAMPLED)))


def test_a_trace_goes_on_to_the_node_to_the_first_step_and_to_the_end(
    client: Client, standing: System, collector: Collector
) -> None:
    with use_span(begun(0xA1)):
        job = client.jobs.create(SHORT_TOY | {"training": {**SHORT_TOY["training"], "save_steps": 10}})
    job.wait(timeout=60)
    trace = f"{0xA1:032x}"
    until(lambda: set(collector.of(trace)) >= OURS | A_NODE_S, within=at_ease(30), what="the whole trace has come")

    spans = collector.of(trace)

    whole = spans["supervise"]
    assert spans["POST /jobs"].parent_span_id.hex() == f"{0xF067AA0BA902B7:016x}"
    assert whole.parent_span_id == spans["attempt 1"].span_id
    assert {spans[name].parent_span_id for name in ("ask", "launch", "training", "hand over")} == {whole.span_id}
    assert spans["first step"].parent_span_id == spans["training"].span_id
    ends = [spans[name].end_time_unix_nano for name in ("ask", "launch", "first step", "hand over")]
    assert ends == sorted(ends)
    assert ends[-1] <= whole.end_time_unix_nano
    about = said(whole)
    assert (about["footplate.job"], about["footplate.node"], about["footplate.attempt"]) == (job.id, "node-1", 1)
    assert (about["footplate.ending"], about["footplate.reason"]) == ("finished", "completed")
    assert said(spans["first step"])["footplate.step"] == 1
    assert [event.name for event in spans["training"].events] == ["checkpoint", "checkpoint"]
    assert "node" in {sent["footplate.role"] for sent in collector.resources()}


def test_an_attempt_that_fails_says_so_in_its_trace(client: Client, standing: System, collector: Collector) -> None:
    with use_span(begun(0xB2)):
        job = client.jobs.create(FAILING | {"retry": {"max_attempts": 1}})
    job.wait(timeout=60)
    trace = f"{0xB2:032x}"
    until(lambda: set(collector.of(trace)) >= OURS | {"supervise"}, within=at_ease(30), what="the trace has come")

    spans = collector.of(trace)

    assert "first step" not in spans
    assert spans["supervise"].status.code == 2
    assert spans["supervise"].status.message == standing.job(job.id)["error"]["code"]
