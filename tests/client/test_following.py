"""Tests how a stream of one job's events reconnects after each way in which its connection can break."""

from __future__ import annotations

import time

import pytest

from footplate.errors import FootplateError, NotFound, ServiceError, Unauthorized, Unreachable, WaitTimeout
from footplate.sdk.follow import EventPosition, follow
from footplate.sdk.wire import Wire
from tests.client.fake_wire import FakeAnswer, FakeWire, Socket, event, messages
from tests.client.test_asking import JOB, a_job, answer

END = {"end": "succeeded", "last": 9}


async def read(wire: Wire, position: EventPosition | None = None) -> list[int]:
    return [event.no async for event in follow(wire, "/stream", position or EventPosition())]


def cursors(wire: FakeWire) -> list[str]:
    return [request.url.params["after"] for request in wire.requests]


async def test_a_broken_stream_reconnects_after_its_last_event() -> None:
    first, second = Socket(), Socket()
    wire = FakeWire(
        FakeAnswer(first.events(1, 2), first.events(3)),
        FakeAnswer(second.events(4), second.frame(END)),
    )

    assert await read(wire) == [1, 2, 3, 4]
    assert cursors(wire) == ["0", "3"]


async def test_repeated_events_are_yielded_once_and_unknown_kinds_are_skipped() -> None:
    socket = Socket()
    wire = FakeWire(
        FakeAnswer(socket.events(1, 2), socket.events(2, 3), socket.events(4, kind="aura"), socket.frame(END))
    )

    assert await read(wire) == [1, 2, 3]


async def test_a_frame_may_arrive_in_pieces_or_together_with_another() -> None:
    socket = Socket()
    content = socket.events(1, 2) + socket.fragments({"events": [event(3)]}) + socket.frame(END)
    wire = FakeWire(FakeAnswer(*[content[at : at + 7] for at in range(0, len(content), 7)]))

    assert await read(wire) == [1, 2, 3]


async def test_a_reconnect_is_immediate_and_after_a_restart_within_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, third, fourth = Socket(), Socket(), Socket(), Socket()
    wire = FakeWire(
        FakeAnswer(first.events(1) + first.close(4408, "too slow; come back with after=1")),
        FakeAnswer(second.events(2) + second.close(1011, "keepalive ping timeout")),
        FakeAnswer(third.events(3) + third.close(1012, "restart")),
        FakeAnswer(fourth.frame(END)),
    )

    assert await read(wire) == [1, 2, 3]
    assert cursors(wire) == ["0", "1", "2", "3"]
    assert wire.pauses[:2] == [0, 0]
    assert 0 < wire.pauses[2] < 1
    assert [record.getMessage() for record in caplog.records] == [
        "connection lost (restart); trying again", "connected again"
    ]  # fmt: skip


async def test_the_client_pauses_before_it_reconnects_to_a_service_that_keeps_closing() -> None:
    wire = FakeWire(*[FakeAnswer(Socket().close(1011, "keepalive ping timeout")) for _ in range(4)])

    with pytest.raises(Unreachable):
        await read(wire)

    assert wire.pauses[0] == 0
    assert all(seconds > 0 for seconds in wire.pauses[1:])


async def test_a_deadline_holds_even_if_keepalive_comments_arrive() -> None:
    comments = [b": still here\n\n"] * 3
    socket = FakeAnswer(*comments, status=200, content_type="text/event-stream")
    position = EventPosition(deadline=time.monotonic() + 60)

    async def late(timeout_seconds: float) -> bytes:
        position.deadline = 0.0
        return comments[0]

    socket.read = late  # type: ignore[method-assign]
    with pytest.raises(WaitTimeout):
        await read(FakeWire(socket), position)


async def test_every_ping_is_answered_by_a_pong_with_its_payload() -> None:
    socket = Socket()
    wire = FakeWire(FakeAnswer(socket.ping(b"one"), socket.events(1) + socket.ping(b"two"), socket.frame(END)))

    await read(wire)

    assert socket.pongs(wire.replies) == [b"one", b"two"]


@pytest.mark.parametrize(("code", "kind"), [(4401, Unauthorized), (4404, NotFound), (4400, FootplateError)])
async def test_a_close_code_that_no_retry_would_change_is_raised(code: int, kind: type[Exception]) -> None:
    wire = FakeWire(FakeAnswer(Socket().close(code, "that is why")))

    with pytest.raises(kind, match="that is why"):
        await read(wire)


async def test_too_many_open_streams_raise_their_own_error() -> None:
    refusals = [FakeAnswer(Socket().close(4429, "this key has 2000 streams open")) for _ in range(4)]

    with pytest.raises(ServiceError, match="2000 streams"):
        await read(FakeWire(*refusals))


async def test_the_client_retries_longer_if_the_service_has_answered_before() -> None:
    with pytest.raises(Unreachable):
        await read(FakeWire(*[FakeAnswer() for _ in range(4)]))

    socket = Socket()
    broken_answers = [FakeAnswer() for _ in range(20)]
    proxy_answer = FakeAnswer(b"<html>", status=502)
    last_answer = FakeAnswer(
        messages([event(2), {"end": "succeeded", "last": 2}]), status=200, content_type="text/event-stream"
    )
    wire = FakeWire(FakeAnswer(socket.events(1)), *broken_answers, proxy_answer, last_answer)
    assert await read(wire) == [1, 2]
    assert max(wire.pauses) <= 5

    with pytest.raises(Unreachable):
        await read(FakeWire(FakeAnswer(Socket().events(1)), FakeAnswer()), EventPosition(patience=-1))


async def test_waiting_for_a_known_job_tolerates_an_unreachable_service() -> None:
    socket = Socket()
    broken_answers = [FakeAnswer() for _ in range(20)]
    wire = FakeWire(*broken_answers, FakeAnswer(socket.events(1) + socket.frame(END)))

    assert [event.no async for event in follow(wire, "/stream", EventPosition(), was_connected=True)] == [1]


async def test_a_wait_without_a_timeout_left_asks_the_service_once() -> None:
    ended = FakeWire(answer(200, {**JOB, "state": "succeeded"}))

    assert (await a_job(ended).wait(timeout=0)).state == "succeeded"
    with pytest.raises(WaitTimeout):
        await a_job(FakeWire(answer())).wait(timeout=0)
