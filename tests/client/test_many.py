"""Tests streams of many jobs, which reconnect after the last event of each job."""

from __future__ import annotations

import pytest

from footplate.errors import NotFound
from footplate.sdk.client import Operations
from footplate.sdk.follow_many import MOST_NAMED, EventPositions
from footplate.sdk.wire import Wire
from tests.client.fake_wire import FakeAnswer, FakeWire, Socket, event

A, B, C = ("job_" + letter * 32 for letter in "abc")


def events_of(job: str, *numbers: int) -> dict[str, object]:
    return {"job": job, "events": [event(number, job=job) for number in numbers]}


def end_of(job: str, last: int) -> dict[str, object]:
    return {"job": job, "end": "succeeded", "last": last}


def answer(*frames: dict[str, object]) -> FakeAnswer:
    socket = Socket()
    return FakeAnswer(*[socket.frame(frame) for frame in frames])


EventNumbers = list[tuple[str, int]]


async def read(wire: Wire, *jobs: str, tag: str | None = None, frames: EventNumbers | None = None) -> EventNumbers:
    frames = [] if frames is None else frames
    async for frame in Operations(wire, "http://service.invalid", 600.0).stream(jobs or None, tag=tag):
        frames.append((frame.job, frame.no))
    return frames


async def test_a_stream_of_jobs_reconnects_after_each_jobs_last_event() -> None:
    wire = FakeWire(
        answer(events_of(A, 1, 2), events_of(B, 1), end_of(A, 2)),
        answer(events_of(B, 2), {"job": B, "caught_up": 2}, end_of(B, 2)),
    )

    assert await read(wire, A, B) == [(A, 1), (A, 2), (B, 1), (B, 2)]
    assert [request.url.params["jobs"] for request in wire.requests] == [f"{A},{B}", f"{B}:1"]


async def test_a_stream_of_no_jobs_ends_without_a_request() -> None:
    wire = FakeWire()

    assert [event async for event in Operations(wire, "http://service.invalid", 600.0).stream([])] == []
    assert wire.requests == []


async def test_a_filtered_stream_reconnects_with_its_jobs_and_its_last_time() -> None:
    wire = FakeWire(
        answer({"since": "2026-01-01T12:00:00.000Z"}, events_of(A, 1), events_of(B, 1, 2), end_of(B, 2)),
        answer(events_of(B, 1, 2), end_of(B, 2), events_of(A, 2), events_of(B, 3)),
        FakeAnswer(Socket().close(4404, "that is enough")),
    )

    numbers: EventNumbers = []
    with pytest.raises(NotFound):
        await read(wire, tag="mine", frames=numbers)

    assert numbers == [(A, 1), (B, 1), (B, 2), (A, 2), (B, 3)]
    assert [dict(request.url.params) for request in wire.requests[:2]] == [
        {"tag": "mine"},
        {"tag": "mine", "jobs": f"{A}:1", "since": "2026-01-01T12:00:00.000Z"},
    ]


def test_a_stream_url_of_too_many_jobs_names_only_the_jobs_with_the_most_events() -> None:
    cursors = {f"job_{number:032x}": number + 1 for number in range(1000)}
    position = EventPositions(cursors=cursors, filters={"tag": "mine"}, follows_more=True)

    named_jobs = position.params["jobs"].split(",")

    assert len(named_jobs) == MOST_NAMED
    assert named_jobs[0] == f"job_{999:032x}:1000"
    assert len(position.params["jobs"]) < 8000
