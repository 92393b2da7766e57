"""One history over many connections: what each way of breaking does to the reader."""

from __future__ import annotations

import time

import pytest

from footplate.errors import FootplateError, NotFound, ServiceError, Unauthorized, Unreachable, WaitTimeout
from footplate.sdk.follow import Position, follow
from footplate.sdk.waiting import Wire
from tests.client.fake_wire import FakeLine, FakeWire, Socket, event, messages

END = {"end": "succeeded", "last": 9}


async def read(wire: Wire, place: Position | None = None) -> list[int]:
    return [event.no async for event in follow(wire, "/stream", place or Position())]


def cursors(wire: FakeWire) -> list[str]:
    return [request.url.params["after"] for request in wire.asked]


async def test_a_connection_that_breaks_is_followed_by_one_from_the_last_event() -> None:
    first, second = Socket(), Socket()
    wire = FakeWire(
        FakeLine(first.events(1, 2), first.events(3)),
        FakeLine(second.events(4), second.frame(END)),
    )

    assert await read(wire) == [1, 2, 3, 4]
    assert cursors(wire) == ["0", "3"]


async def test_what_comes_twice_is_told_once_and_what_nobody_knows_is_passed_over() -> None:
    line = Socket()
    wire = FakeWire(FakeLine(line.events(1, 2), line.events(2, 3), line.events(4, kind="aura"), line.frame(END)))

    assert await read(wire) == [1, 2, 3]


async def test_a_frame_may_come_in_pieces_and_two_at_once() -> None:
    line = Socket()
    whole = line.events(1, 2) + line.fragments({"events": [event(3)]}) + line.frame(END)
    wire = FakeWire(FakeLine(*[whole[at : at + 7] for at in range(0, len(whole), 7)]))

    assert await read(wire) == [1, 2, 3]


async def test_a_slow_reader_comes_back_at_once_and_quietly_and_after_a_restart_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, third, fourth = Socket(), Socket(), Socket(), Socket()
    wire = FakeWire(
        FakeLine(first.events(1) + first.close(4408, "too slow; come back with after=1")),
        FakeLine(second.events(2) + second.close(1011, "keepalive ping timeout")),
        FakeLine(third.events(3) + third.close(1012, "restart")),
        FakeLine(fourth.frame(END)),
    )

    assert await read(wire) == [1, 2, 3]
    assert cursors(wire) == ["0", "1", "2", "3"]
    assert wire.waited[:2] == [0, 0]
    assert 0 < wire.waited[2] < 1
    assert [record.getMessage() for record in caplog.records] == [
        "connection lost (restart); trying again", "connected again"
    ]  # fmt: skip


async def test_a_service_that_closes_again_and_again_is_asked_with_pauses_in_between() -> None:
    wire = FakeWire(*[FakeLine(Socket().close(1011, "keepalive ping timeout")) for _ in range(4)])

    with pytest.raises(Unreachable):
        await read(wire)

    assert wire.waited[0] == 0
    assert all(seconds > 0 for seconds in wire.waited[1:])


async def test_a_deadline_holds_among_comments_that_only_show_that_the_service_lives() -> None:
    comments = [b": still here\n\n"] * 3
    line = FakeLine(*comments, status=200, content_type="text/event-stream")
    place = Position(deadline=time.monotonic() + 60)

    async def late(within: float) -> bytes:
        place.deadline = 0.0
        return comments[0]

    line.read = late  # type: ignore[method-assign]
    with pytest.raises(WaitTimeout):
        await read(FakeWire(line), place)


async def test_every_ping_is_answered_by_a_pong_with_its_payload() -> None:
    line = Socket()
    wire = FakeWire(FakeLine(line.ping(b"one"), line.events(1) + line.ping(b"two"), line.frame(END)))

    await read(wire)

    assert line.pongs(wire.replies) == [b"one", b"two"]


@pytest.mark.parametrize(("code", "kind"), [(4401, Unauthorized), (4404, NotFound), (4400, FootplateError)])
async def test_what_no_second_try_would_change_is_raised(code: int, kind: type[Exception]) -> None:
    wire = FakeWire(FakeLine(Socket().close(code, "that is why")))

    with pytest.raises(kind, match="that is why"):
        await read(wire)


async def test_too_many_streams_are_told_as_that_when_none_becomes_free() -> None:
    full = [FakeLine(Socket().close(4429, "this key has 2000 streams open")) for _ in range(4)]

    with pytest.raises(ServiceError, match="2000 streams"):
        await read(FakeWire(*full))


async def test_a_service_that_was_never_there_is_given_up_soon_and_one_that_was_late() -> None:
    with pytest.raises(Unreachable):
        await read(FakeWire(*[FakeLine() for _ in range(4)]))

    line = Socket()
    away = [FakeLine() for _ in range(20)]
    proxy = FakeLine(b"<html>", status=502)
    last = FakeLine(messages([event(2), {"end": "succeeded", "last": 2}]), status=200, content_type="text/event-stream")
    wire = FakeWire(FakeLine(line.events(1)), *away, proxy, last)
    assert await read(wire) == [1, 2]
    assert max(wire.waited) <= 5

    with pytest.raises(Unreachable):
        await read(FakeWire(FakeLine(Socket().events(1)), FakeLine()), Position(patience=-1))


async def test_who_waits_for_a_job_that_it_knows_bears_a_service_that_is_away_at_first() -> None:
    line = Socket()
    away = [FakeLine() for _ in range(20)]
    wire = FakeWire(*away, FakeLine(line.events(1) + line.frame(END)))

    assert [event.no async for event in follow(wire, "/stream", Position(), was_connected=True)] == [1]


async def test_a_deadline_that_passes_is_told_as_that() -> None:
    with pytest.raises(WaitTimeout):
        await read(FakeWire(), Position(deadline=0.0))
