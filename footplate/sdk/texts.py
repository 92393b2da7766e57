"""Texts that a checkpoint of a job generates, read while they are made."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import httpx2

from footplate.errors import of_answer
from footplate.sdk.request import Ask, unreachable
from footplate.sdk.waiting import Wire

READ_SECONDS = 600.0
"""The time to wait for the next part of a text. The first part may have to wait until a node has loaded the model."""
LAST_EVENT = b"data: [DONE]"
Prompt = str | Sequence[Mapping[str, str]]


async def generated(
    wire: Wire, job: str, prompt: Prompt, checkpoint: str | None, parameters: Mapping[str, Any]
) -> AsyncGenerator[str, None]:
    """Yields the parts of a text after a prompt, or of the answer to a conversation. Raises ApiError."""
    model = job if checkpoint is None else f"{job}:{checkpoint}"
    path, asked = ("/v1/completions", {"prompt": prompt}) if isinstance(prompt, str) else (
        "/v1/chat/completions", {"messages": [dict(message) for message in prompt]},
    )  # fmt: skip
    body = {"model": model, **asked, **parameters, "stream": True}
    what = Ask.with_json("POST", path, body, read_seconds=READ_SECONDS)
    request = what.on(wire)
    try:
        async with wire.open(request) as line:
            if (status := line.response.status_code) != 200:
                raise _error(status, json.loads(await line.rest()))
            rest = b""
            while chunk := await line.read(READ_SECONDS):
                *events, rest = (rest + chunk).split(b"\n\n")
                for event in events:
                    if event == LAST_EVENT:
                        return
                    for text in _texts(event.decode().removeprefix("data: ")):
                        yield text
        raise httpx2.ReadError("the answer is not complete")
    except httpx2.TransportError as error:
        raise unreachable(request.url, error) from error


def _texts(event: str) -> Iterator[str]:
    document = json.loads(event)
    if "error" in document:
        raise _error(503, document)
    for choice in document["choices"]:
        if text := choice.get("text") or choice.get("delta", {}).get("content"):
            yield text


def _error(status: int, document: Any) -> Exception:
    """Returns the exception for an error in OpenAI's form."""
    error = document.get("error", {})
    return of_answer(status, {"code": error.get("code", "internal"), "detail": error.get("message", "")})
