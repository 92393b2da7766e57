"""Reads a text that a checkpoint of a job generates, in chunks, while it is generated."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import httpx2

from footplate.errors import of_answer
from footplate.sdk.request import ApiRequest, document_of, refusal, unreachable
from footplate.sdk.wire import Wire

READ_SECONDS = 600.0
"""The number of seconds to wait for the next chunk. The first chunk may wait until a node has loaded the model."""
LAST_EVENT = b"data: [DONE]"
Prompt = str | Sequence[Mapping[str, str]]


async def generated(
    wire: Wire, job: str, prompt: Prompt, checkpoint: str | None, parameters: Mapping[str, Any]
) -> AsyncGenerator[str, None]:
    """Yields the chunks of a text that continues a prompt or answers a conversation. Raises ApiError."""
    model = job if checkpoint is None else f"{job}:{checkpoint}"
    path, fields = ("/v1/completions", {"prompt": prompt}) if isinstance(prompt, str) else (
        "/v1/chat/completions", {"messages": [dict(message) for message in prompt]},
    )  # fmt: skip
    body = {"model": model, **fields, **parameters, "stream": True}
    api_request = ApiRequest.with_json("POST", path, body, read_seconds=READ_SECONDS)
    request = api_request.http_request(wire)
    try:
        async with wire.open(request) as answer:
            if answer.response.status_code != 200:
                raise _refusal(await answer.complete())
            incomplete = b""
            while chunk := await answer.read(READ_SECONDS):
                *events, incomplete = (incomplete + chunk).split(b"\n\n")
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


def _refusal(answer: httpx2.Response) -> Exception:
    """Returns the exception for an answer that is not 200. A proxy's answer is not in the format of OpenAI's API."""
    document = document_of(answer)
    is_of_openai = isinstance(document, dict) and isinstance(document.get("error"), dict)
    return _error(answer.status_code, document) if is_of_openai else refusal(answer)


def _error(status: int, document: Any) -> Exception:
    """Returns the exception for an error answer in the format of OpenAI's API."""
    error = document.get("error", {})
    return of_answer(status, {"code": error.get("code", "internal"), "detail": error.get("message", "")})
