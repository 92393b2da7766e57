"""Tests streams of many jobs on one socket: named jobs, matching jobs, and jobs that are submitted later."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from footplate.contract.events import Kind
from footplate.contract.ids import Fence, JobId, new_job_id
from footplate.contract.lifecycle import JobState, Reason
from service.api import stream_many
from service.events import tail
from service.store import jobs
from tests.service.api.conftest import KEY, PATIENCE, Api, Serve, each_case
from tests.support.processes import until_async

Frames = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stream_many, tail):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)


def numbers(frames: Frames, job: str) -> list[int]:
    return [event["no"] for frame in frames if frame.get("job") == job for event in frame.get("events", ())]


async def until_frame(socket: Any, frames: Frames, is_wanted: Callable[[dict[str, Any]], bool]) -> Frames:
    """Reads frames until one is wanted, and returns all frames that were read."""
    while not any(map(is_wanted, frames)):
        frames.append(json.loads(await asyncio.wait_for(socket.recv(), PATIENCE)))
    return frames


def end_of(job: str) -> Callable[[dict[str, Any]], bool]:
    return lambda frame: frame.get("job") == job and "end" in frame


def live(job: str) -> Callable[[dict[str, Any]], bool]:
    return lambda frame: frame.get("job") == job and "caught_up" in frame


@pytest.mark.own_statement
async def test_named_jobs_are_streamed_in_order_until_the_last_has_ended(both: Api) -> None:
    first, second, other = [await both.submit() for _ in range(3)]
    await both.append(first, *[{"loss": n} for n in range(300)])
    await both.end(first)
    reading = asyncio.create_task(both.frames(f"/stream?jobs={first},{second}"))

    await both.append(second, *[{"loss": n} for n in range(5)])
    await both.end(second)
    frames, code, _ = await reading

    assert numbers(frames, first) == list(range(1, 305))
    assert numbers(frames, second) == list(range(1, 10))
    assert [frame["caught_up"] for frame in frames if live(first)(frame)] == [304]
    assert {frame["job"]: (frame["end"], frame["last"]) for frame in frames if "end" in frame} == {
        first: ("succeeded", 304),
        second: ("succeeded", 9),
    }
    assert numbers(frames, other) == []
    assert code == 1000


async def test_each_job_continues_from_its_own_cursor(api: Api) -> None:
    first, second = await api.submit(), await api.submit()
    for job in (first, second):
        await api.append(job, *[{"loss": n} for n in range(9)])
        await api.end(job)

    frames, code, _ = await api.frames(f"/stream?jobs={first}:7,{second}:13")

    assert (numbers(frames, first), numbers(frames, second), code) == (list(range(8, 14)), [], 1000)


@pytest.mark.own_statement
async def test_jobs_that_match_the_filter_join_the_stream_when_they_are_submitted(both: Api) -> None:
    before = await both.submit(tags=["mine"])
    over = await both.submit(tags=["mine"])
    await both.end(over)
    async with both.socket("/stream?tag=mine") as socket:
        frames = await until_frame(socket, [], live(before))

        later, foreign = await both.submit(tags=["mine"]), await both.submit(tags=["yours"])
        await both.end(later)
        await until_frame(socket, frames, end_of(later))
        await both.append(before, {"loss": 1.0})
        await both.end(before)
        await until_frame(socket, frames, end_of(before))

    assert "since" in frames[0]
    assert numbers(frames, later) == [1, 2, 3, 4]
    assert numbers(frames, before) == [1, 2, 3, 4, 5]
    assert numbers(frames, over) == numbers(frames, foreign) == []


async def test_a_resumed_job_continues_in_the_stream_after_its_end(api: Api) -> None:
    job = await api.submit()
    async with api.socket("/stream") as socket:
        frames = await until_frame(socket, [], live(job))
        await api.end(job, JobState.FAILED)
        await until_frame(socket, frames, end_of(job))

        assert (await api.client.post(f"/jobs/{job}/resume")).status_code == 202
        await api.end(job)
        await until_frame(socket, frames, lambda frame: frame.get("end") == "succeeded")

    assert numbers(frames, job) == list(range(1, 9))


async def test_a_job_that_joined_a_stream_by_its_state_stays_after_it_leaves_the_state(api: Api) -> None:
    waiting, running = await api.submit(), await api.submit()
    await move(api, running, JobState.STARTING, JobState.RUNNING)
    async with api.socket("/stream?state=running") as socket:
        frames = await until_frame(socket, [], live(running))
        await move(api, running, JobState.SUCCEEDED)
        await until_frame(socket, frames, end_of(running))

    assert numbers(frames, waiting) == []


async def test_a_reconnect_with_since_gets_jobs_that_ran_during_the_gap(api: Api) -> None:
    async with api.socket("/stream") as socket:
        since = json.loads(await socket.recv())["since"]
    job = await api.submit()
    await api.end(job)

    async with api.socket(f"/stream?since={since}") as socket:
        frames = await until_frame(socket, [], end_of(job))

    assert numbers(frames, job) == [1, 2, 3, 4]


async def test_a_stream_with_kinds_and_max_hz_loses_no_event(api: Api) -> None:
    first, second = await api.submit(), await api.submit()
    began = time.monotonic()
    reading = asyncio.create_task(api.frames(f"/stream?jobs={first},{second}&kinds=log,note&max_hz=5"))
    for n in range(50):
        await api.append(first, {"loss": n})
        await api.append(second, {"text": "hello"}, kind=Kind.NOTE)
        await asyncio.sleep(0)
    await api.end(first)
    await api.end(second)

    frames, _, _ = await reading

    assert numbers(frames, first) == numbers(frames, second) == list(range(2, 52))
    # Each job has one frame at its start and one at its end, independent of `max_hz`.
    looks = 5 * (time.monotonic() - began) + 3
    assert sum("events" in frame for frame in frames) <= 2 * looks


async def test_max_hz_holds_for_a_job_that_always_has_new_events(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    job, looks, read_page = await api.submit(), 0, tail.Channel.after

    async def read_and_append(channel: tail.Channel, cursor: int, view: tail.View) -> tail.EventPage:
        nonlocal looks
        page = await read_page(channel, cursor, view)
        if (looks := looks + 1) < 100:
            await api.append(job, {"loss": looks})
        return page

    monkeypatch.setattr(tail.Channel, "after", read_and_append)
    began = time.monotonic()
    reading = asyncio.create_task(api.frames(f"/stream?jobs={job}&max_hz=5"))
    await until_async(lambda: looks > 3, what="the stream has read four times")

    assert looks <= 5 * (time.monotonic() - began) + 2
    looks = 100
    await api.end(job)
    assert (await reading)[1] == 1000


async def test_a_deleted_job_is_reported_and_the_others_continue(api: Api) -> None:
    deleted, stays = await api.submit(), await api.submit()
    async with api.socket(f"/stream?jobs={deleted},{stays}") as socket:
        frames = await until_frame(socket, [], live(deleted))
        await api.db.write(lambda conn: jobs.erase(conn, deleted))
        api.services.tail.wake([deleted])
        await until_frame(socket, frames, end_of(deleted))
        await api.end(stays)
        await until_frame(socket, frames, end_of(stays))

    assert [frame["end"] for frame in frames if "end" in frame] == ["deleted", "succeeded"]
    again, code, _ = await api.frames(f"/stream?jobs={deleted}:1")
    assert (again, code) == ([{"job": deleted, "end": "deleted", "last": 1}], 1000)


async def test_the_last_moment_that_a_date_can_name_is_a_since(api: Api) -> None:
    async with api.socket("/stream?since=9999-12-31T23:59:59.9999Z") as socket:
        assert json.loads(await socket.recv())["since"].startswith("9999-12-31T23:59:59")


@each_case(
    ("query", "code", "says"),
    [
        ("jobs=nonsense", 4404, "no job 'nonsense'"),
        ("jobs=job_01890a5d5a7f7cc0b4d1e5c5f0a1b2c3", 4404, "there is no job"),
        ("jobs={job}:99", 4400, "beyond the last event"),
        ("jobs={job}:x", 4400, "not a whole number"),
        ("jobs={job},{job}", 4400, "twice"),
        ("jobs=", 4404, "no job ''"),
        ("jobs=" + ",".join(new_job_id() for _ in range(151)), 4400, "more than 150 entries"),
        ("state=failed", 4400, "is a final state"),
        ("state=runing", 4400, "no state 'runing'"),
        ("tag=", 4400, "no tag"),
        ("tag=%00", 4400, "a NUL character"),
        ("since=yesterday", 4400, "not a time"),
        ("kinds=nonsense", 4400, "no kind"),
        ("after=1", 4400, "'after'"),
    ],
)
async def test_a_stream_that_is_refused_closes_with_a_code_and_a_sentence(
    api: Api, query: str, code: int, says: str
) -> None:
    job = await api.submit()

    frames, result, reason = await api.frames(f"/stream?{query.replace('{job}', job)}")

    assert (frames, result) == ([], code)
    assert says in reason


async def test_more_jobs_than_the_limit_are_refused_and_later_ones_are_counted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (stream_many, tail):
        monkeypatch.setattr(module, "MOST_JOBS", 2)
    first, second = await api.submit(tags=["a"]), await api.submit(tags=["a"])
    async with api.socket("/stream?tag=a") as socket:
        frames = await until_frame(socket, [], live(second))
        third = await api.submit(tags=["a"])
        await until_frame(socket, frames, lambda frame: frame.get("left_out") == 1)
        refused_frames, code, _ = await api.frames("/stream?tag=a")
        await api.end(first)
        await until_frame(socket, frames, live(third))

    assert (refused_frames, code) == ([], 4400)
    assert numbers(frames, third) == [1]


async def test_jobs_of_another_project_are_not_found(serve: Serve, sqlite_url: str) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    theirs = await api.submit(project="speech")
    mine = await api.submit()
    key = {"Authorization": f"Bearer {KEY}"}

    _, code, _ = await api.frames(f"/stream?jobs={theirs}", additional_headers=key)
    assert code == 4404
    async with api.socket("/stream", additional_headers=key) as socket:
        frames = await until_frame(socket, [], live(mine))
    async with api.socket("/stream?project=speech", additional_headers=key) as socket:
        foreign = await until_frame(socket, [], live(theirs))
    assert numbers(frames, theirs) == numbers(foreign, mine) == []


async def test_a_job_with_a_flood_of_events_delays_no_other_job(api: Api) -> None:
    """Jobs are read in turns, so the event of the quiet job arrives before the other history is complete."""
    loud, quiet = await api.submit(), await api.submit()
    await api.append(loud, *[{"loss": n} for n in range(1500)])

    async with api.socket(f"/stream?jobs={loud},{quiet}") as socket:
        frames = await until_frame(socket, [], live(quiet))

    assert len(numbers(frames, loud)) < 300


async def move(api: Api, job: JobId, *states: JobState) -> None:
    """Moves a job through these states by the state table."""

    def write(conn: Any) -> None:
        for state in states:
            row = jobs.lock(conn, job)
            assert row
            attempt = {"next_attempt": 1, "next_fence": Fence(1)} if state is JobState.STARTING else {}
            assert jobs.move(conn, job, to=state, expect=[row.state], reason=Reason.PLACED, now=1, **attempt)

    await api.db.write(write)
    api.services.tail.wake([job])
