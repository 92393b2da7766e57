"""Routes in the form of OpenAI's API that generate text with a checkpoint of a job, or return vectors of texts.

`model` names a job or one of its checkpoints. A field of OpenAI's API that has no effect here is refused by its name.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from footplate.contract.conversations import plain, text_of
from footplate.contract.errors import FootplateError, InvalidSpec, Problem
from footplate.contract.fields import Group, Many, Whole
from footplate.contract.ids import JobId, uuid7
from footplate.contract.serving import Piece, PieceKind, Work
from service.api.openai.jobs import UnknownModel
from service.api.openai.names import read_model_name
from service.api.predict import WAIT_SECONDS
from service.deps import StrictRoute, json_response, read_model, services_of
from service.jobs.serving import STEP
from service.serving import Answering, Question, send_request
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

Json = dict[str, Any]
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
LAST_EVENT = b"data: [DONE]\n\n"
MOST_TEXTS = 2048
_JOB = re.compile(r"(?P<job>job_[0-9a-f]{32})(?::(?P<checkpoint>latest|best|step-[0-9]{1,18}|ckpt_[0-9a-f]{32}))?")
"""A job's id. A checkpoint may follow, such as `:step-100` or `:best`."""


def _listed(value: Any) -> Any:
    """Returns one stop text as a list. An empty text stops nothing."""
    return [value] if isinstance(value, str) and value else value or []


def _text(content: Any) -> Any:
    try:
        return text_of(content)
    except ValueError as error:
        raise PydanticCustomError("not_text", "{sentence}", {"sentence": str(error)}) from None


Stop = Annotated[
    Many[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=16), BeforeValidator(_listed)
]
Zero = Annotated[float, Field(ge=0, le=0)]


class _Nullable(Group):
    """A group in which a field that is null counts as left out, as at OpenAI.

    The SDKs send an answer's message with nulls when it is appended to the next request's messages.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class StreamOptions(_Nullable):
    include_usage: bool = False


class _Sampling(_Nullable):
    """The fields that chats and completions share."""

    model: Annotated[str, Field(max_length=600)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[Whole, Field(ge=1, le=128)] | None = None
    stop: Stop = ()
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    """The client's own id of its user, which has no effect."""
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None


class Message(_Nullable):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text)]
    name: Annotated[str, Field(min_length=1)] | None = None


class TextFormat(Group):
    type: Literal["text"]


class Chat(_Sampling):
    messages: Annotated[Many[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    response_format: TextFormat | None = None
    logprobs: Literal[False] | None = None


class Completion(_Sampling):
    prompt: JsonValue
    echo: Literal[False] | None = None
    best_of: Annotated[Whole, Field(ge=1, le=1)] | None = None


class Embedding(Group):
    model: Annotated[str, Field(max_length=600)]
    input: JsonValue
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


class Model(NamedTuple):
    job: JobId
    checkpoint: str | None


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    body = await read_model(request, Chat)
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        detail = "max_tokens is the older name of max_completion_tokens, and both are there"
        raise InvalidSpec([Problem("/max_tokens", "disagreement", detail, "leave it out")])
    asks = _sampling(body, body.max_completion_tokens or body.max_tokens) | {
        "messages": [plain(message.model_dump(exclude_none=True)) for message in body.messages]
    }
    return await _generated(request, body, asks, is_chat=True)


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    body = await read_model(request, Completion)
    asks = _sampling(body, body.max_tokens or DEFAULT_TOKENS) | {"prompts": _texts(body.prompt, "prompt")}
    return await _generated(request, body, asks, is_chat=False)


@router.post("/v1/embeddings")
async def create_embedding(request: Request) -> Response:
    body = await read_model(request, Embedding)
    question = _question(body.model, Work.EMBED, {"inputs": _texts(body.input, "input")})
    async with send_request(services_of(request), question, request.is_disconnected) as answering:
        data = await _whole(answering)
    vectors = [
        {
            "object": "embedding",
            "index": at,
            "embedding": _packed(vector) if body.encoding_format == "base64" else vector,
        }
        for at, vector in enumerate(data["vectors"])
    ]
    usage = {"prompt_tokens": data["prompt_tokens"], "total_tokens": data["prompt_tokens"]}
    return json_response({"object": "list", "model": body.model, "data": vectors, "usage": usage})


DEFAULT_TOKENS = 16
"""The length of a completion whose request has no max_tokens, as at OpenAI."""


# Requests


def model_of_name(name: str) -> Model:
    """Returns the job and the checkpoint that a model's name means. Raises UnknownModel."""
    if (tuned := read_model_name(name)) is not None:
        return Model(tuned.job, None if tuned.step is None else f"{STEP}{tuned.step}")
    match = _JOB.fullmatch(name)
    if match is None:
        hint = "name a fine-tuned model, or a job's id, also with a checkpoint: job_…:best, job_…:step-100"
        raise UnknownModel(f"{name[:100]!r} is neither the name of a fine-tuned model nor the id of a job", hint=hint)
    return Model(JobId(match["job"]), match["checkpoint"])


def _question(model: str, work: Work, body: Json) -> Question:
    named = model_of_name(model)
    return Question(named.job, named.checkpoint, work, body, WAIT_SECONDS)


def _sampling(body: _Sampling, max_tokens: int | None) -> Json:
    if body.stream_options is not None and not body.stream:
        raise InvalidSpec([Problem("/stream_options", "disagreement", "is only for stream: true", "leave it out")])
    return {
        "max_tokens": max_tokens,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "n": body.n or 1,
        "stop": list(body.stop),
        "seed": body.seed,
        "stream": bool(body.stream),
    }


def _texts(value: JsonValue, field: str) -> list[str | list[int]]:
    """Returns the texts of a request: one text, several, the tokens of one, or the tokens of several."""
    values = value if isinstance(value, list) and not _are_tokens(value) else [value]
    for at, text in enumerate(values[: MOST_TEXTS + 1]):
        if not isinstance(text, str) and not _are_tokens(text):
            pointer = f"/{field}/{at}" if values is value else f"/{field}"
            raise InvalidSpec([Problem(pointer, "wrong_type", "must be a text, or a list of token numbers")])
    if not 0 < len(values) <= MOST_TEXTS:
        detail = f"has {len(values)} texts, and 1 to {MOST_TEXTS} are possible"
        raise InvalidSpec([Problem(f"/{field}", "out_of_range", detail)])
    return values  # type: ignore[return-value]


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


# Answers


async def _generated(request: Request, body: _Sampling, asks: Json, *, is_chat: bool) -> Response:
    question = _question(body.model, Work.COMPLETE, asks)
    prefix, kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
    about = {"id": f"{prefix}-{uuid7()}", "object": kind, "created": now_ms() // 1000, "model": body.model}
    services = services_of(request)
    if not body.stream:
        async with send_request(services, question, request.is_disconnected) as answering:
            data = await _whole(answering)
        choices = [_choice(choice, is_chat=is_chat) for choice in data["choices"]]
        return json_response({**about, "choices": choices, "usage": _usage(data)})
    stack = AsyncExitStack()
    answering = await stack.enter_async_context(send_request(services, question, request.is_disconnected))
    if is_chat:
        about["object"] = "chat.completion.chunk"
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    return _Stream(_events(answering, about, is_chat=is_chat, with_usage=with_usage), stack)


def _choice(choice: Json, *, is_chat: bool) -> Json:
    text = choice["text"]
    content = {"message": {"role": "assistant", "content": text, "refusal": None}} if is_chat else {"text": text}
    return {"index": choice["index"], **content, "logprobs": None, "finish_reason": choice["finish_reason"]}


class _Stream(StreamingResponse):
    """A response of server-sent events. If it ends early, the serving session stops working on the request."""

    def __init__(self, events: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
        super().__init__(events, 200, STREAM_HEADERS, "text/event-stream")
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _events(answering: Answering, about: Json, *, is_chat: bool, with_usage: bool) -> AsyncIterator[bytes]:
    begun: set[int] = set()
    # With include_usage, each event has a usage of null, as OpenAI's events do, and the last one has the numbers.
    usage: Json = {"usage": None} if with_usage else {}

    def event(*choices: Json, **more: Any) -> bytes:
        return f"data: {json.dumps({**about, 'choices': choices, **usage, **more}, ensure_ascii=False)}\n\n".encode()

    def part(index: int, delta: Json, text: str = "", finish_reason: str | None = None) -> bytes:
        """Returns an event with the next text of a choice, which is in `delta` for a chat, and in `text` otherwise."""
        content = {"delta": delta} if is_chat else {"text": text}
        return event({"index": index, **content, "logprobs": None, "finish_reason": finish_reason})

    def begin(index: int) -> bytes:
        is_new = index not in begun
        begun.add(index)
        return part(index, {"role": "assistant", "content": ""}) if is_chat and is_new else b""

    try:
        async for piece in answering.pieces:
            if piece.kind is PieceKind.CHUNK:
                index, text = piece.data["index"], piece.data["text"]
                yield begin(index) + part(index, {"content": text}, text)
                continue
            for choice in piece.data["choices"]:
                yield begin(choice["index"]) + part(choice["index"], {}, finish_reason=choice["finish_reason"])
            if with_usage:
                yield event(usage=_usage(piece.data))
            yield LAST_EVENT
    except FootplateError as error:
        # The status has been sent, so the error is an event. OpenAI's clients raise it.
        sentence = error.message + (f" ({error.hint})" if error.hint else "")
        failure = {"message": sentence, "type": "server_error", "param": None, "code": error.code}
        yield f"data: {json.dumps({'error': failure})}\n\n".encode()


async def _whole(answering: Answering) -> Json:
    pieces: list[Piece] = [piece async for piece in answering.pieces]
    return pieces[-1].data


def _usage(data: Json) -> Json:
    prompt, made = data["prompt_tokens"], sum(choice["tokens"] for choice in data["choices"])
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def _packed(vector: list[float]) -> str:
    """Returns a vector as OpenAI's base64: 32-bit floats, little end first."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
