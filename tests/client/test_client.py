"""Tests the client with a real service, a real node and jobs that train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from footplate import AsyncClient, Client, Job, JobCancelled, JobFailed
from footplate.errors import Conflict, NotFound, VersionChanged, WaitTimeout
from tests.client.conftest import FAILING
from tests.support.system import LONG_TOY, SHORT_TOY, System, assert_whole

PATIENCE = 240
"""Timeout in seconds for jobs that end soon. It is long because a machine may freeze for a while."""
PING, PONG = b"\x89", b"\x8a"
"""First bytes of a websocket's ping and pong frames."""
ELSEWHERE = {**SHORT_TOY, "resources": {"pool": "nowhere"}}
"""A job that waits for a pool without a node."""
ENDLESS = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 100_000, "save_total_limit": 2}}


def curve(job: Job) -> tuple[tuple[Any, ...], tuple[float, ...]]:
    (line,) = job.metrics.series("loss").values()
    return line.x, line.y


def test_a_job_is_submitted_followed_and_downloaded(client: Client, standing: System, tmp_path: Path) -> None:
    job = client.jobs.create(SHORT_TOY, name="first", tags=["story"])
    events = [event.model_dump(mode="json") for event in job.events()]

    assert events == standing.events(job.id)
    assert_whole(events)
    assert job.wait(timeout=PATIENCE).raise_for_status().state == "succeeded"
    assert [row["step"] for row in job.metrics() if "loss" in row] == list(range(1, 21))
    assert dict(zip(*curve(job), strict=True)) == standing.losses(job.id)
    assert job.metrics.summary()["loss"].last.step == 20
    assert [line.text for line in job.logs()] == [e["data"]["text"] for e in events if e["kind"] == "line"]
    assert (latest := job.checkpoints.latest()) is not None
    assert latest.step == 20
    assert job.checkpoints.best() is None
    files = {path.name: path.read_bytes() for path in job.outputs.download(tmp_path / "out")}
    assert files["model.safetensors"] == standing.final_weights(job.id)
    assert {entry.path: entry.bytes for entry in job.outputs.list()} == {
        name: len(data) for name, data in files.items()
    }
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(files)
    assert [attempt.ending for attempt in job.attempts()] == ["finished"]
    assert job.spec()["training"]["max_steps"] == 20


async def test_leaving_an_async_event_stream_early_closes_its_connection(standing: System) -> None:
    async with AsyncClient(standing.url) as client:
        job = await client.jobs.create(ENDLESS)
        async for event in job.events():
            assert event.no == 1
            break
        await job.cancel("kill")
        await job.wait(timeout=PATIENCE)


def test_a_job_is_paused_resumed_amended_cancelled_and_deleted(client: Client, standing: System) -> None:
    job = client.jobs.create(ENDLESS)
    standing.until_step(job.id, 3)

    order_no = job.do(set={"max_steps": 200_000}).info.last_no
    [order] = [event for event in job.events(kinds="do", follow=False) if event.no == order_no]
    assert order.data["set"] == {"max_steps": 200_000}
    assert "cancel" in job.pause().info.actions
    standing.until_state(job.id, "paused")
    with pytest.raises(WaitTimeout, match=job.id):
        job.wait(timeout=0.2)
    version = job.refresh().info.version
    assert job.amend(name="mine", priority=9, if_version=version).name == "mine"
    with pytest.raises(VersionChanged):
        job.amend(name="yours", if_version=version)
    assert job.resume(priority=1).info.priority == 1
    [cancelled] = client.jobs.bulk("cancel", ids=[job.id], mode="kill")
    assert cancelled.error is None
    assert client.jobs.bulk("cancel", name="nobody's") == []
    assert job.wait(timeout=PATIENCE).state == "cancelled"
    with pytest.raises(JobCancelled):
        job.raise_for_status()
    with pytest.raises(Conflict) as refused:
        job.pause()
    assert refused.value.allowed == ["resume", "fork", "delete"]
    job.delete()
    with pytest.raises(NotFound):
        job.refresh()


def test_a_client_acts_in_its_project(client: Client, standing: System) -> None:
    with Client(standing.url, project="vision") as vision:
        job = vision.jobs.create(ELSEWHERE)
        job.cancel().wait(timeout=PATIENCE)

        assert (job.state, job.info.project) == ("cancelled", "vision")
        assert job.id in [entry.id for entry in vision.jobs.list()]
        assert job.id not in [entry.id for entry in vision.jobs.list(project="default")]
    with pytest.raises(NotFound):
        client.jobs.get(job.id)


def test_a_failed_job_raises_its_error_with_the_traceback(client: Client) -> None:
    with pytest.raises(JobFailed) as failed:
        client.jobs.create(FAILING).wait(timeout=PATIENCE).raise_for_status()

    assert failed.value.code == "error"
    assert "shapes cannot be multiplied" in failed.value.message
    assert "Traceback" in (failed.value.traceback or "")


def test_the_list_of_jobs_goes_through_every_page(
    client: Client, standing: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("footplate.sdk.request.ROWS_PER_PAGE", 2)
    ids = [client.jobs.create(ELSEWHERE, tags=["pages"]).pause().id for _ in range(5)]

    assert [job.id for job in client.jobs.list(tag="pages")] == ids[::-1]
    assert [job.id for job in client.jobs.list(tag="pages", limit=3)] == ids[:1:-1]
    assert list(client.jobs.list(tag="pages", state=["succeeded", "failed"])) == []
    for job in client.jobs.list(tag="pages"):
        job.cancel()


# Faults of the network -----------------------------------------------------------------------------------------------


class FaultyTransport(httpx2.HTTPTransport):
    """A transport to the real service that lets `handle` change requests and answers."""

    def __init__(self, handle: Callable[[httpx2.Request, Callable[[], httpx2.Response]], httpx2.Response]) -> None:
        super().__init__()
        self._handle = handle

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._handle(request, lambda: super(FaultyTransport, self).handle_request(request))


class CutStream(httpx2.SyncByteStream):
    """Yields the first bytes of an answer, and then fails."""

    def __init__(self, whole: Any, length: int) -> None:
        self._whole, self._length = whole, length

    def __iter__(self) -> Any:
        left_bytes = self._length
        for chunk in self._whole:
            yield chunk[:left_bytes]
            if (left_bytes := left_bytes - len(chunk)) <= 0:
                raise httpx2.ReadError("cut off")


def test_the_client_uses_server_sent_events_if_a_proxy_removes_upgrades(standing: System) -> None:
    def no_upgrades(request: httpx2.Request, send: Callable[[], httpx2.Response]) -> httpx2.Response:
        for name in ("connection", "upgrade"):
            request.headers.pop(name, None)
        return send()

    with Client(standing.url, transport=FaultyTransport(no_upgrades)) as client:
        job = client.jobs.create(SHORT_TOY)
        numbers = [event.no for event in job.events()]
        job.wait(timeout=PATIENCE)

    assert numbers == [event["no"] for event in standing.events(job.id)]


class WebsocketCounter:
    """Counts websockets, pings and pongs, and calls `then` after a number of pings."""

    def __init__(self, after: int, then: Callable[[], object]) -> None:
        self.streams, self.pings, self.pongs, self._after, self._then = 0, 0, 0, after, then

    def on(self, answer: httpx2.Response) -> httpx2.Response:
        if answer.status_code == 101:
            self.streams += 1
            answer.extensions["network_stream"] = CountedStream(answer.extensions["network_stream"], self)
        return answer

    def read(self, data: bytes) -> bytes:
        if data[:1] == PING:
            self.pings += 1
            if self.pings == self._after:
                self._then()
        return data

    def wrote(self, data: bytes) -> None:
        self.pongs += data[:1] == PONG


@dataclass
class CountedStream:
    """A blocking or asynchronous network stream whose pings and pongs are counted."""

    inner: Any
    counter: WebsocketCounter

    def read(self, *args: Any) -> Any:
        data = self.inner.read(*args)
        return self.counter.read(data) if isinstance(data, bytes) else self._read(data)

    async def _read(self, data: Any) -> bytes:
        return self.counter.read(await data)

    def write(self, data: bytes, *args: Any) -> Any:
        self.counter.wrote(data)
        return self.inner.write(data, *args)


class AsyncCountingTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, counter: WebsocketCounter) -> None:
        super().__init__()
        self._counter = counter

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._counter.on(await super().handle_async_request(request))


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
async def test_a_stream_of_a_silent_job_answers_every_ping_and_stays_open(
    kind: str, client: Client, standing: System
) -> None:
    job = client.jobs.create(ELSEWHERE)
    counter = WebsocketCounter(5, job.cancel)

    if kind == "blocking":
        with Client(standing.url, transport=FaultyTransport(lambda _, send: counter.on(send()))) as blocking:
            states = [event.data["state"] for event in blocking.jobs.get(job.id).events(kinds="state")]
    else:
        async with AsyncClient(standing.url, transport=AsyncCountingTransport(counter)) as other:
            states = [event.data["state"] async for event in (await other.jobs.get(job.id)).events(kinds="state")]

    assert states == ["queued", "cancelled"]
    assert counter.streams == 1
    # A ping that arrives in one chunk with an event is not counted.
    assert counter.pongs >= counter.pings >= 5


def test_a_broken_download_continues_where_it_stopped(standing: System, client: Client, tmp_path: Path) -> None:
    job = client.jobs.create(SHORT_TOY).wait(timeout=PATIENCE)
    ranges: list[str] = []

    def cut_files(request: httpx2.Request, send: Callable[[], httpx2.Response]) -> httpx2.Response:
        answer = send()
        if request.url.path.endswith("model.safetensors"):
            ranges.append(request.headers.get("range", "all"))
            answer.stream = CutStream(answer.stream, 9000)
        return answer

    with Client(standing.url, transport=FaultyTransport(cut_files)) as client_with_cuts:
        (model,) = client_with_cuts.jobs.get(job.id).outputs.download(tmp_path, only=["model.safetensors"])

    assert ranges == ["all", "bytes=9000-", "bytes=18000-"]
    assert model.read_bytes() == standing.final_weights(job.id)
    with pytest.raises(NotFound, match=r"metrics\.json, model\.safetensors, spec\.json"):
        job.outputs.download(tmp_path, only=["model.bin"])
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["model.safetensors"]
