"""Tests generated texts that the client reads as a stream, over a fake connection."""

from __future__ import annotations

import json

import pytest

from footplate.errors import NotFound, ServiceError, Unreachable
from footplate.sdk.texts import generated
from tests.client.fake_wire import FakeAnswer, FakeWire

CHAT = [{"role": "user", "content": "when?"}]


def event(document: object) -> bytes:
    return f"data: {document if isinstance(document, str) else json.dumps(document)}\n\n".encode()


def part(**choice: object) -> bytes:
    return event({"choices": [{"index": 0, **choice}]})


async def test_parts_of_a_text_stream_arrive_in_order_however_they_are_cut() -> None:
    content = part(delta={"role": "assistant", "content": ""}) + part(delta={"content": "at"})
    content += part(delta={"content": " dawn"}) + part(delta={}) + event("[DONE]")
    wire = FakeWire(FakeAnswer(*[content[at : at + 7] for at in range(0, len(content), 7)], status=200))

    parts = [text async for text in generated(wire, "job_1", CHAT, "best", {"temperature": 0})]

    assert parts == ["at", " dawn"]
    [request] = wire.requests
    assert request.url.path == "/v1/chat/completions"
    assert json.loads(request.content) == {
        "model": "job_1:best", "messages": CHAT, "temperature": 0, "stream": True,
    }  # fmt: skip


async def test_a_text_stream_that_breaks_off_is_an_error() -> None:
    wire = FakeWire(FakeAnswer(part(text="at"), status=200))

    with pytest.raises(Unreachable):
        [text async for text in generated(wire, "job_1", "a", None, {})]


async def test_errors_before_and_within_a_text_stream_are_raised() -> None:
    error = {"error": {"message": "the serving session job_2 ended", "code": "serving_ended"}}
    broken_wire = FakeWire(FakeAnswer(part(text="at") + event(error), status=200))
    missing_wire = FakeWire(FakeAnswer(json.dumps(error).encode(), status=404))

    stream = generated(broken_wire, "job_1", "a", None, {})
    assert await anext(stream) == "at"
    with pytest.raises(ServiceError, match="job_2"):
        await anext(stream)
    with pytest.raises(NotFound, match="job_2"):
        await anext(generated(missing_wire, "job_1", "a", None, {}))


async def test_the_error_page_of_a_proxy_is_raised_as_a_service_error() -> None:
    wire = FakeWire(FakeAnswer(b"<html>Bad Gateway</html>", status=502))

    with pytest.raises(ServiceError, match="answers 502"):
        await anext(generated(wire, "job_1", "a", None, {}))
