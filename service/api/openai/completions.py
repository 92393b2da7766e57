"""Routes in the form of OpenAI's API that generate text with a checkpoint of a job, or return vectors of texts.

`model` names a job or one of its checkpoints. A field of OpenAI's API that has no effect here is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from footplate.contract.conversations import plain, text_of
from footplate.contract.errors import InvalidSpec, NotFound, Problem
from footplate.contract.fields import Group, Json, Many, Whole, pattern
from footplate.contract.ids import JobId, uuid7
from footplate.contract.serving import AnswerPiece, Work
from service.api.openai.answers import AnswerForm, packed, stream_events, usage_of
from service.api.openai.jobs import UnknownModel
from service.api.openai.model_names import read_model_name
from service.api.predict import WAIT_SECONDS, Stops
from service.deps import StrictRoute, json_response, read_model
from service.jobs.serving import STEP, CheckpointMissing
from service.serving import AnswerStream, ModelRequest, send_request
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MOST_TEXTS = 2048
DEFAULT_TOKENS = 16
"""The length of a completion whose request has no max_tokens, as at OpenAI."""
_JOB = re.compile(r"(?P<job>job_[0-9a-f]{32})(?::(?P<checkpoint>latest|best|step-[0-9]{1,18}|ckpt_[0-9a-f]{32}))?")
"""A job's id. A checkpoint may follow, such as `:step-100` or `:best`."""


def _listed(value: Any) -> Any:
    """Returns the stop texts of a request as a list. The request may send one text, and an empty text means none."""
    return [value] if isinstance(value, str) and value else value or []


def _text(content: Any) -> Any:
    try:
        return text_of(content)
    except ValueError as error:
        raise PydanticCustomError("not_text", "{sentence}", {"sentence": str(error)}) from None


Stop = Annotated[Stops, BeforeValidator(_listed)]
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
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    """The client's own id of its user, which has no effect. The next two fields have replaced it at OpenAI."""
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, JsonValue], Field(max_length=0)] | None = None


FunctionName = Annotated[str, pattern(r"^[a-zA-Z0-9_-]{1,64}$", "may contain only letters, digits, _ and -", 64)]


class CalledFunction(_Nullable):
    name: FunctionName
    arguments: str


class ToolCall(_Nullable):
    id: Annotated[str, Field(max_length=200)]
    type: Literal["function"]
    function: CalledFunction
    index: Annotated[Whole | None, Field(ge=0, exclude=True)] = None
    """The SDK's `stream()` leaves the call's place in the answer in its message, which chat templates do not read."""


class Message(_Nullable):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text)] | None = None
    name: Annotated[str, Field(min_length=1)] | None = None
    tool_calls: Many[ToolCall] | None = None
    tool_call_id: Annotated[str, Field(max_length=200)] | None = None


class Function(_Nullable):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    strict: Literal[False] | None = None
    """True is refused, because an answer cannot be forced into a schema here."""


class Tool(Group):
    type: Literal["function"]
    function: Function


class TextFormat(Group):
    type: Literal["text"]


class Chat(_Sampling):
    messages: Annotated[Many[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    response_format: TextFormat | None = None
    modalities: Annotated[Many[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    tools: Annotated[Many[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None


class Completion(_Sampling):
    prompt: JsonValue
    echo: Literal[False] | None = None
    best_of: Annotated[Whole, Field(ge=1, le=1)] | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=5)] | None = None


class Embedding(_Nullable):
    model: Annotated[str, Field(max_length=600)]
    input: JsonValue
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    body = await read_model(request, Chat)
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        detail = "cannot be sent together with max_completion_tokens, of which it is the older name"
        raise InvalidSpec([Problem("/max_tokens", "disagreement", detail, "leave it out")])
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidSpec([Problem("/top_logprobs", "disagreement", "needs logprobs: true", "add logprobs")])
    if not body.tools and (sent_names := {"tool_choice", "parallel_tool_calls"} & body.model_fields_set):
        raise InvalidSpec(
            [
                Problem(f"/{name}", "disagreement", "is only allowed with tools", "leave it out")
                for name in sorted(sent_names)
            ]
        )
    work_body = _sampling(body, body.max_completion_tokens or body.max_tokens) | {"messages": _messages(body.messages)}
    if body.logprobs:
        work_body["top_logprobs"] = body.top_logprobs or 0
    if body.tools and body.tool_choice != "none":
        work_body["tools"] = [tool.model_dump(exclude_none=True) for tool in body.tools]
    return await _generated(request, body, work_body, is_chat=True, calls_at_once=body.parallel_tool_calls is not False)


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    body = await read_model(request, Completion)
    work_body = _sampling(body, body.max_tokens or DEFAULT_TOKENS) | {"prompts": _texts(body.prompt, "prompt")}
    if body.logprobs is not None:
        work_body["top_logprobs"] = body.logprobs
    return await _generated(request, body, work_body, is_chat=False)


@router.post("/v1/embeddings")
async def create_embedding(request: Request) -> Response:
    body = await read_model(request, Embedding)
    model_request = _model_request(body.model, Work.EMBED, {"inputs": _texts(body.input, "input")})
    async with _sent(request, model_request) as answer_stream:
        data = await answer_stream.last_data()
    vectors = [
        {
            "object": "embedding",
            "index": index,
            "embedding": packed(vector) if body.encoding_format == "base64" else vector,
        }
        for index, vector in enumerate(data["vectors"])
    ]
    usage = {"prompt_tokens": data["prompt_tokens"], "total_tokens": data["prompt_tokens"]}
    return json_response({"object": "list", "model": body.model, "data": vectors, "usage": usage})


# Requests


def _model_request(name: str, work: Work, body: Json) -> ModelRequest:
    """Returns the request to the job and the checkpoint that a model's name means. Raises UnknownModel."""
    if (tuned_model := read_model_name(name)) is not None:
        job, checkpoint = tuned_model.job, None if tuned_model.step is None else f"{STEP}{tuned_model.step}"
    elif (match := _JOB.fullmatch(name)) is not None:
        job, checkpoint = JobId(match["job"]), match["checkpoint"]
    else:
        hint = "name a fine-tuned model, or a job's id, also with a checkpoint: job_…:best, job_…:step-100"
        raise UnknownModel(f"{name[:100]!r} is neither the name of a fine-tuned model nor the id of a job", hint=hint)
    return ModelRequest(job, checkpoint, work, body, WAIT_SECONDS)


def _sampling(body: _Sampling, max_tokens: int | None) -> Json:
    if body.stream_options is not None and not body.stream:
        raise InvalidSpec([Problem("/stream_options", "disagreement", "needs stream: true", "leave it out")])
    return {
        "max_tokens": max_tokens,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "n": body.n or 1,
        "stop": list(body.stop),
        "seed": body.seed,
        "stream": bool(body.stream),
    }


def _messages(messages: Sequence[Message]) -> list[Json]:
    """Returns the messages for a chat template. Raises InvalidSpec if one is not complete."""
    for index, message in enumerate(messages):
        if message.tool_calls and message.role != "assistant":
            detail = f"only messages of the assistant may have calls, and this message is from {message.role}"
            raise InvalidSpec([Problem(f"/messages/{index}/tool_calls", "disagreement", detail, "leave it out")])
        if message.content is None and not message.tool_calls:
            raise InvalidSpec([Problem(f"/messages/{index}/content", "missing", "this field is required")])
    return [plain(message.model_dump(mode="json", exclude_none=True)) for message in messages]


def _texts(value: JsonValue, field: str) -> list[str | list[int]]:
    """Returns the texts of a request as a list. A text is a string or a list of token ids."""
    values = value if isinstance(value, list) and not _are_tokens(value) else [value]
    for index, text in enumerate(values[: MOST_TEXTS + 1]):
        if not isinstance(text, str) and not _are_tokens(text):
            pointer = f"/{field}/{index}" if values is value else f"/{field}"
            raise InvalidSpec([Problem(pointer, "wrong_type", "must be a string or a list of token ids")])
    if not 0 < len(values) <= MOST_TEXTS:
        detail = f"has {len(values)} texts, but must have 1 to {MOST_TEXTS}"
        raise InvalidSpec([Problem(f"/{field}", "out_of_range", detail)])
    return values  # type: ignore[return-value]


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


# Answers


async def _generated(
    request: Request, body: _Sampling, work_body: Json, *, is_chat: bool, calls_at_once: bool = True
) -> Response:
    form = AnswerForm(is_chat, calls_at_once, is_sent_whole="tools" in work_body)
    model_request = _model_request(body.model, Work.COMPLETE, work_body)
    prefix, kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
    common_fields = {"id": f"{prefix}-{uuid7()}", "object": kind, "created": now_ms() // 1000, "model": body.model}
    if not body.stream:
        async with _sent(request, model_request) as answer_stream:
            data = await answer_stream.last_data()
        choices = [form.choice(choice) for choice in data["choices"]]
        return json_response({**common_fields, "choices": choices, "usage": usage_of(data)})
    if is_chat:
        common_fields["object"] = "chat.completion.chunk"
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    async with AsyncExitStack() as stack:
        answer_stream = await stack.enter_async_context(_sent(request, model_request))
        # Only until the first piece has come can a refusal be the status of the response.
        pieces = _from_first(await anext(answer_stream.pieces), answer_stream.pieces)
        return _Stream(stream_events(pieces, common_fields, form, with_usage=with_usage), stack.pop_all())


@asynccontextmanager
async def _sent(request: Request, model_request: ModelRequest) -> AsyncIterator[AnswerStream]:
    """Sends a request to a session. Raises UnknownModel if the job or its checkpoint does not exist."""
    try:
        async with send_request(request, model_request) as answer_stream:
            yield answer_stream
    except NotFound as error:
        raise UnknownModel(error.message, hint="models.list() lists the models") from error
    except CheckpointMissing as error:
        if error.code == CheckpointMissing.code:
            # The job has no checkpoint yet, so a later request may work.
            raise
        raise UnknownModel(error.message, hint=error.hint) from error


async def _from_first(first_piece: AnswerPiece, other_pieces: AsyncIterator[AnswerPiece]) -> AsyncIterator[AnswerPiece]:
    yield first_piece
    async for piece in other_pieces:
        yield piece


class _Stream(StreamingResponse):
    """A response of server-sent events. If it ends early, the serving session stops working on the request."""

    def __init__(self, events: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
        super().__init__(events, 200, STREAM_HEADERS, "text/event-stream")
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)
