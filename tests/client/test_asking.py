"""Tests which requests the client retries, how long it waits between tries, and when it gives up."""

from __future__ import annotations

import os
import subprocess
from hashlib import sha256
from pathlib import Path

import httpx2
import pytest
from opentelemetry import context, trace

from footplate.errors import (
    Conflict,
    DownloadFailed,
    Forbidden,
    InvalidRequest,
    NotFound,
    ServiceError,
    Unauthorized,
    Unreachable,
    of_answer,
)
from footplate.sdk.checkpoints import AsyncCheckpoints
from footplate.sdk.client import Operations
from footplate.sdk.files import AsyncOutputs, RemoteFile, fetch, path_below
from footplate.sdk.jobs import AsyncJob, AsyncJobs
from footplate.sdk.models import JobInfo
from footplate.sdk.request import ApiRequest, pause_seconds, send, send_json
from footplate.sdk.wire import BlockingWire, run
from tests.client.fake_wire import URL, FakeWire

JOB = {
    "id": "job_" + "0" * 32, "project": "default", "name": None, "tags": [], "metadata": {}, "priority": 5,
    "state": "queued", "reason": "submitted", "message": None, "desired": "run", "actions": ["cancel"], "attempt": 0,
    "node": None, "nodes": [], "version": 1, "last_no": 1, "created_at": "2026-01-01T12:00:00.000Z",
    "updated_at": "2026-01-01T12:00:00.000Z", "queued_at": "2026-01-01T12:00:00.000Z", "started_at": None,
    "finished_at": None, "running_s": 0.0, "progress": None, "metrics": {}, "result": None, "error": None,
    "warnings": [], "of_a_newer_service": 1,
}  # fmt: skip


def answer(status: int = 200, value: object = JOB, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json=value, headers={name.replace("_", "-"): text for name, text in headers.items()})


def a_job(wire: FakeWire) -> AsyncJob:
    return AsyncJob(wire, JobInfo.model_validate(JOB), 0.0)


def test_a_request_within_a_span_sends_its_traceparent() -> None:
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, False, trace.TraceFlags(1)))
    token = context.attach(trace.set_span_in_context(span))
    try:
        request = ApiRequest("GET", "/nodes").http_request(FakeWire())
    finally:
        context.detach(token)

    assert request.headers["traceparent"] == f"00-{1:032x}-{2:016x}-01"
    assert "traceparent" not in ApiRequest("GET", "/nodes").http_request(FakeWire()).headers


async def test_a_get_is_retried_after_the_services_retry_after() -> None:
    wire = FakeWire(answer(503, Retry_After="7"), httpx2.ReadTimeout("late"), answer())

    assert (await send(wire, ApiRequest("GET", "/nodes"))).status_code == 200

    assert len(wire.requests) == 3
    assert 7 <= wire.pauses[0] < 9
    assert wire.pauses[1] < 1


async def test_the_client_can_request_a_range_of_steps_of_curves() -> None:
    wire = FakeWire(*[answer(value={"x": "step", "data": [], "next_cursor": None})] * 2)

    await a_job(wire).metrics.series("loss", first_step=0, last_step=20)
    await AsyncJobs(wire, 0.0).series([a_job(wire)], "loss", last_step=20)

    of_one_job, of_several = (dict(request.url.params) for request in wire.requests)
    assert (of_one_job["first_step"], of_one_job["last_step"]) == ("0", "20")
    assert "first_step" not in of_several
    assert of_several["last_step"] == "20"


async def test_a_request_fails_with_the_address_after_its_last_try() -> None:
    wire = FakeWire(*[httpx2.ConnectError("refused")] * 4)

    with pytest.raises(Unreachable, match=URL):
        await send(wire, ApiRequest("GET", "/nodes"))

    assert (len(wire.requests), len(wire.pauses)) == (4, 3)


async def test_the_last_of_several_503_answers_raises_the_services_message() -> None:
    wire = FakeWire(*[answer(503, {"code": "unavailable", "detail": "the database is away"})] * 4)

    with pytest.raises(ServiceError, match="the database is away"):
        await send(wire, ApiRequest("GET", "/nodes"))


async def test_every_try_of_a_submit_has_the_same_key_and_the_same_bytes() -> None:
    wire = FakeWire(httpx2.ReadError("cut off"), answer(502, ""), answer(201))

    job = await AsyncJobs(wire, 0.0).create({"model": "toy/mlp", "data": "toy/regression"}, name="one")

    assert job.state == "queued"
    assert len({request.headers["idempotency-key"] for request in wire.requests}) == 1
    assert len({request.content for request in wire.requests}) == 1


async def test_a_change_with_if_match_is_not_retried_after_the_connection_broke() -> None:
    wire = FakeWire(httpx2.ConnectError("refused"), httpx2.ReadError("cut off"))

    with pytest.raises(Unreachable):
        await a_job(wire).amend(name="one", if_version=3)

    assert [request.headers["if-match"] for request in wire.requests] == ['"3"', '"3"']


async def test_a_delete_whose_answer_was_lost_is_a_success() -> None:
    await a_job(FakeWire(httpx2.ReadError("cut off"), answer(404, {"code": "not_found"}))).delete()

    with pytest.raises(NotFound):
        await a_job(FakeWire(answer(404, {"code": "not_found"}))).delete()


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("body", [b"<html>", b"[]", b"null", b"{}", b'{"data": 5}'])
async def test_an_answer_of_another_program_is_reported_as_not_from_footplate(status: int, body: bytes) -> None:
    wire = FakeWire(*[httpx2.Response(status, content=body) for _ in range(2)])

    with pytest.raises(Unreachable, match=f"{URL}.*not a Footplate service"):
        await Operations(wire, URL, 0.0).nodes()
    with pytest.raises(Unreachable):
        await Operations(wire, URL, 0.0).health()


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_name_that_changes_the_address_is_refused_before_any_request(name: str) -> None:
    client = Operations(FakeWire(), URL, 0.0)

    for operation in (
        client.keys.delete(name),
        client.webhooks.rotate(name),
        client.files.get(name),
        client.bundles.get(name),
        client.remove_node(name),
        AsyncCheckpoints(FakeWire(), "/jobs/1").get(name),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await operation
        assert refused.value.code == "invalid_id"


async def test_a_filter_that_is_too_long_for_an_address_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="tag cannot be sent"):
        await AsyncJobs(FakeWire(), 0.0).list(tag="a" * 70_000)


@pytest.mark.parametrize(
    "location",
    ["https://footplate.test/nodes", "/login", "http://footplate.test/login", "mailto:me", "http://[::1", "https:///a"],
)
async def test_a_redirect_is_reported_with_its_target_if_that_is_another_address(location: str) -> None:
    redirect = httpx2.Response(302, html="<html>", headers={"location": location})
    is_other = location.startswith("https://footplate")

    with pytest.raises(Unreachable, match="redirects to https://footplate.test" if is_other else "not a Footplate"):
        await send_json(FakeWire(redirect), ApiRequest("GET", "/nodes"))


@pytest.mark.parametrize(("status", "kind"), [(403, Forbidden), (404, NotFound), (409, Conflict)])
def test_an_error_status_raises_its_exception_with_the_fields_of_the_answer(status: int, kind: type[Exception]) -> None:
    document = {"code": "some", "detail": "no", "hint": "do this", "request_id": "req_1", "allowed": ["resume"]}
    error = of_answer(status, document)

    assert type(error) is kind
    assert (error.code, error.message, error.hint, error.request_id) == ("some", "no", "do this", "req_1")


def test_a_401_names_the_environment_variable_to_set_and_not_a_header() -> None:
    error = of_answer(
        401, {"code": "unauthorized", "detail": "the request needs a key", "hint": "send it as 'Authorization: …'"}
    )

    assert type(error) is Unauthorized
    assert "FOOTPLATE_API_KEY" in str(error)
    assert "Authorization" not in str(error)


def test_pauses_between_tries_double_up_to_a_limit() -> None:
    assert 0.25 <= pause_seconds(1) < 0.32
    assert 1.0 <= pause_seconds(3) < 1.26
    assert pause_seconds(1000) <= 25
    assert pause_seconds(1, "86400") <= 25


def test_a_partial_file_that_is_too_long_is_downloaded_again(tmp_path: Path) -> None:
    def serve(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(416 if "Range" in request.headers else 200, content=b"model")

    remote = RemoteFile("/files/a", "a", 5, sha256(b"model").hexdigest())
    remote.temporary(tmp_path / "a").write_bytes(b"model and more")
    with httpx2.Client(base_url=URL, transport=httpx2.MockTransport(serve)) as client:
        path = run(fetch(BlockingWire(client, tries=1), remote, tmp_path))

    assert path.read_bytes() == b"model"


def test_what_a_killed_download_left_is_removed_by_the_next_download_of_the_file(tmp_path: Path) -> None:
    killed = subprocess.Popen(["true"])
    killed.wait()
    remote = RemoteFile("/outputs/a", "a", 5)
    temporaries = [remote.temporary(tmp_path / "a", pid) for pid in (killed.pid, os.getppid())]
    for temporary in (*temporaries, tmp_path / ".a.notes.part"):
        temporary.touch()
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, content=b"model"))
    with httpx2.Client(base_url=URL, transport=transport) as client:
        run(fetch(BlockingWire(client, tries=1), remote, tmp_path))

    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a", tmp_path / ".a.notes.part", temporaries[1]])


async def test_outputs_whose_names_cannot_be_sent_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    output = {"path": "model.bin", "bytes": 5, "modified_at": ""}
    wire = FakeWire(*[answer(200, {"data": [output], "left_out": 2, "next_cursor": None}) for _ in range(2)])
    outputs = AsyncOutputs(wire, "/jobs/1")

    for _ in range(2):
        assert [output.path for output in await outputs.list()] == ["model.bin"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "2 files" in caplog.text


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "", "a\0b"])
def test_a_download_refuses_file_names_that_leave_its_folder(path: str) -> None:
    with pytest.raises(DownloadFailed):
        path_below(Path("out"), path)
