"""Tests chats, completions and embeddings in OpenAI's form. The test plays the node on which the session runs."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from asyncio.subprocess import PIPE
from base64 import b64decode
from typing import Any

import openai
import pytest

from footplate.contract import redis_keys
from footplate.contract.serving import AnswerPieceKind
from tests.service.api.conftest import Api
from tests.service.api.test_openai import client_of
from tests.service.api.test_predict import Node, session_of, trained
from tests.service.api.test_predict import api as api
from tests.service.api.test_predict import node as node
from tests.service.api.test_predict import standing_redis as standing_redis
from tests.support.processes import clean_environment, until_async

DONE = {"choices": [{"index": 0, "text": "at dawn", "finish_reason": "stop", "tokens": 2}], "prompt_tokens": 3}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
TEXT = {"type": "text", "text": "when?"}
CHAT = {"messages": [{"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
                     {"role": "user", "content": [TEXT, {"type": "text", "text": "dawn?"}]}]}  # fmt: skip


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_a_chat_is_answered_in_the_format_of_openai(api: Api, node: Node) -> None:
    job = await trained(api)
    body = {"model": f"{job}:step-1", "max_completion_tokens": 5, "stop": "\n", "temperature": 0, **CHAT}
    asking = asyncio.create_task(api.client.post("/v1/chat/completions", json=body))
    request = await node.next_request(await session_of(node, job))
    await node.answer(request["id"], **DONE)

    answer = (await asking).json()
    assert (answer["object"], answer["model"], answer["usage"]) == ("chat.completion", body["model"], USAGE)
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "at dawn", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert request["body"] == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "when?\ndawn?"}],
        "max_tokens": 5, "temperature": 0.0, "top_p": 1.0, "n": 1, "stop": ["\n"], "seed": None, "stream": False,
    }  # fmt: skip


async def test_a_stream_has_the_chunks_of_openais_streams(api: Api, node: Node) -> None:
    job = await trained(api)
    body = {"model": job, "stream": True, "stream_options": {"include_usage": True}, **CHAT}
    asking = asyncio.create_task(api.client.post("/v1/chat/completions", json=body))
    request = await node.next_request(await session_of(node, job))
    await node.send_piece(request["id"], AnswerPieceKind.STARTED)
    for text in ("at", " dawn"):
        await node.send_piece(request["id"], AnswerPieceKind.CHUNK, index=0, text=text)
    await node.send_piece(request["id"], AnswerPieceKind.DONE, **DONE)

    answer = await asking
    *parts, last = events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert last == "[DONE]"
    deltas = [part["choices"][0]["delta"] for part in parts[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "at"}, {"content": " dawn"}, {}]
    assert parts[-2]["choices"][0]["finish_reason"] == "stop"
    assert (parts[-1]["choices"], parts[-1]["usage"]) == ([], USAGE)
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}


async def test_openais_client_raises_an_error_if_the_session_ends_during_a_stream(api: Api, node: Node) -> None:
    job, client = await trained(api), client_of(api)
    asking = asyncio.create_task(client.completions.create(model=job, prompt="a", stream=True))
    session = await session_of(node, job)
    request = await node.next_request(session)
    await node.send_piece(request["id"], AnswerPieceKind.STARTED)
    await node.send_piece(request["id"], AnswerPieceKind.CHUNK, index=0, text="at")
    stream = await asking
    await node.send_piece(
        request["id"], AnswerPieceKind.ERROR, code="serving_ended", message=f"GET /jobs/{session} says why"
    )

    part = await anext(stream)
    with pytest.raises(openai.APIError, match=session) as error:
        await anext(stream)

    assert (part.choices[0].text, error.value.code) == ("at", "serving_ended")


async def test_a_stream_that_the_session_refuses_has_the_status_of_the_refusal(api: Api, node: Node) -> None:
    job, client = await trained(api), client_of(api)
    asking = asyncio.create_task(client.completions.create(model=job, prompt="a", stream=True))
    session = await session_of(node, job)
    request = await node.next_request(session)
    await node.send_piece(request["id"], AnswerPieceKind.STARTED)
    await node.send_piece(request["id"], AnswerPieceKind.ERROR, code="context_length_exceeded", message="too long")

    with pytest.raises(openai.BadRequestError, match="too long") as error:
        await asking

    assert error.value.code == "context_length_exceeded"


async def test_a_client_that_leaves_a_stream_withdraws_its_request(api: Api, node: Node) -> None:
    job = await trained(api)
    body = {"model": job, "prompt": "a", "stream": True}
    asking = api.client.stream("POST", "/v1/completions", json=body)
    opening = asyncio.create_task(asking.__aenter__())
    session = await session_of(node, job)
    request = await node.next_request(session)
    await node.send_piece(request["id"], AnswerPieceKind.STARTED)
    await node.send_piece(request["id"], AnswerPieceKind.CHUNK, index=0, text="at")
    await opening
    await asking.__aexit__(None, None, None)

    async def withdrawn() -> bool:
        return bool(await node.redis.lrange(redis_keys.serving_withdrawn(session), 0, -1) == [request["id"].encode()])

    await until_async(withdrawn, what="the session is notified that the client has disconnected")


@pytest.mark.parametrize("form", ["float", "base64", None])
async def test_openais_client_receives_embeddings(api: Api, node: Node, form: str | None) -> None:
    job, client = await trained(api), client_of(api)
    options: Any = {} if form is None else {"encoding_format": form}
    asking = asyncio.create_task(client.embeddings.create(model=job, input=["a", "b"], **options))
    request = await node.next_request(await session_of(node, job))
    await node.answer(request["id"], vectors=[[1.0, 0.0], [0.0, 0.5]], prompt_tokens=2)

    answer = await asking
    vectors: list[Any] = [row.embedding for row in answer.data]
    if form == "base64":
        vectors = [list(struct.unpack("<2f", b64decode(vector))) for vector in vectors]
    assert vectors == [[1.0, 0.0], [0.0, 0.5]]
    assert answer.usage.total_tokens == 2


async def test_vectors_of_a_model_that_has_diverged_are_packed_like_others(api: Api, node: Node) -> None:
    job = await trained(api)
    body = {"model": job, "input": "a", "encoding_format": "base64"}
    asking = asyncio.create_task(api.client.post("/v1/embeddings", json=body))
    request = await node.next_request(await session_of(node, job))
    await node.answer(request["id"], vectors=[["NaN", "-Infinity", 0.5]], prompt_tokens=1)

    answer = await asking

    assert answer.status_code == 200, answer.text
    vector = struct.unpack("<3f", b64decode(answer.json()["data"][0]["embedding"]))
    assert list(map(str, vector)) == ["nan", "-inf", "0.5"]


async def test_openais_client_receives_a_streamed_chat(api: Api, node: Node) -> None:
    job, client = await trained(api), client_of(api)
    name = f"ft:base:default::{job.removeprefix('job_')}:ckpt-step-1"
    messages: Any = CHAT["messages"]
    asking = asyncio.create_task(client.chat.completions.create(model=name, messages=messages, stream=True))
    request = await node.next_request(await session_of(node, job))
    await node.send_piece(request["id"], AnswerPieceKind.STARTED)
    for text in ("at", " dawn"):
        await node.send_piece(request["id"], AnswerPieceKind.CHUNK, index=0, text=text)
    await node.send_piece(request["id"], AnswerPieceKind.DONE, **DONE)

    parts = [part async for part in await asking]

    assert "".join(part.choices[0].delta.content or "" for part in parts) == "at dawn"
    assert parts[-1].choices[0].finish_reason == "stop"


async def test_an_answer_of_openais_client_is_a_message_of_the_next_request(api: Api, node: Node) -> None:
    job, client = await trained(api), client_of(api)
    messages: list[Any] = [{"role": "user", "content": "when?"}]
    neutral: Any = {
        "stop": None, "seed": None, "logprobs": False, "frequency_penalty": 0, "presence_penalty": 0.0,
        "logit_bias": {}, "modalities": ["text"], "service_tier": "auto", "store": False,
    }  # fmt: skip
    for _ in range(2):
        asking = asyncio.create_task(client.chat.completions.create(model=job, messages=messages, **neutral))
        request = await node.next_request(await session_of(node, job))
        await node.answer(request["id"], **DONE)
        messages += [(await asking).choices[0].message, {"role": "user", "content": "and back?"}]

    conversation = [(message["role"], message["content"]) for message in request["body"]["messages"]]
    assert conversation == [("user", "when?"), ("assistant", "at dawn"), ("user", "and back?")]
    assert request["body"]["stop"] == []


TOOL: Any = {
    "type": "function",
    "function": {"name": "paint", "parameters": {"type": "object", "properties": {"color": {"type": "string"}}}},
}
CALL: Any = {"id": "call_1", "type": "function", "function": {"name": "paint", "arguments": '{"color": "blue"}'}}
CALLED = {"choices": [{"index": 0, "text": "", "finish_reason": "tool_calls", "tokens": 9, "tool_calls": [
    {"name": "paint", "arguments": {"color": "blue"}}, {"name": "paint", "arguments": {"color": "green"}}]}],
    "prompt_tokens": 3}  # fmt: skip


@pytest.mark.parametrize("at_once", [True, False], ids=["calls at once", "one call"])
async def test_openais_client_calls_tools_and_returns_their_results(api: Api, node: Node, at_once: bool) -> None:
    job, client = await trained(api), client_of(api)
    messages: list[Any] = [{"role": "user", "content": "paint the sky"}]
    tools: Any = {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": at_once}
    asking = asyncio.create_task(client.chat.completions.create(model=job, messages=messages, **tools))
    request = await node.next_request(await session_of(node, job))
    await node.answer(request["id"], **CALLED)

    [choice] = (await asking).choices
    calls = choice.message.tool_calls or []
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    arguments = [json.loads(call.function.arguments) for call in calls if call.type == "function"]
    assert arguments == [{"color": "blue"}, {"color": "green"}][: 2 if at_once else 1]

    messages += [choice.message, {"role": "tool", "tool_call_id": calls[0].id, "content": "done"}]
    asking = asyncio.create_task(client.chat.completions.create(model=job, messages=messages, **tools))
    request = await node.next_request(await session_of(node, job))
    await node.answer(request["id"], **DONE)
    await asking
    assert request["body"]["tools"] == [TOOL]
    _, called, answered = request["body"]["messages"]
    assert called["tool_calls"][0]["function"] == {"name": "paint", "arguments": {"color": "blue"}}
    assert answered == {"role": "tool", "tool_call_id": calls[0].id, "content": "done"}


async def test_the_message_of_the_sdks_stream_helper_is_a_message_of_the_next_request(api: Api, node: Node) -> None:
    job, client = await trained(api), client_of(api)
    messages: list[Any] = [{"role": "user", "content": "paint the sky"}]

    async def ask() -> Any:
        async with client.chat.completions.stream(model=job, messages=messages, tools=[TOOL]) as stream:
            return (await stream.get_final_completion()).choices[0].message

    asking = asyncio.create_task(ask())
    await node.answer((await node.next_request(await session_of(node, job)))["id"], **CALLED)
    messages += [answer := await asking, {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "done"}]
    asking = asyncio.create_task(ask())
    request = await node.next_request(await session_of(node, job))
    await node.answer(request["id"], **DONE)

    assert (await asking).content == "at dawn"
    call = request["body"]["messages"][1]["tool_calls"][0]
    assert call == {"id": answer.tool_calls[0].id, "type": "function",
                    "function": {"name": "paint", "arguments": {"color": "blue"}}}  # fmt: skip


async def test_a_stream_ends_with_the_calls_of_tools(api: Api, node: Node) -> None:
    job, client = await trained(api), client_of(api)
    messages: Any = CHAT["messages"]
    asking = asyncio.create_task(
        client.chat.completions.create(model=job, messages=messages, tools=[TOOL], stream=True)
    )
    request = await node.next_request(await session_of(node, job))
    await node.answer(request["id"], **CALLED)

    parts = [part.choices[0] async for part in await asking]
    calls = [call for part in parts for call in part.delta.tool_calls or []]
    assert [(call.index, call.function and call.function.arguments) for call in calls] == [
        (0, '{"color": "blue"}'), (1, '{"color": "green"}'),
    ]  # fmt: skip
    assert parts[-1].finish_reason == "tool_calls"


async def test_log_probabilities_have_the_form_of_openais_answers(api: Api, node: Node) -> None:
    job, client = await trained(api), client_of(api)
    likely = [{"token": "at", "logprob": -0.25}, {"token": "é", "logprob": -1.5},
              {"token": "\\xe2\\x82", "bytes": [0xE2, 0x82], "logprob": -2.0}]  # fmt: skip
    parts = [likely[2], {"token": "\\xac", "bytes": [0xAC], "logprob": -1.0}, likely[0]]
    logprobs = [{**part, "top": likely} for part in parts]
    completion = {**DONE, "choices": [{**DONE["choices"][0], "logprobs": logprobs}]}  # type: ignore[index]
    messages: Any = CHAT["messages"]
    chat = asyncio.create_task(
        client.chat.completions.create(model=job, messages=messages, logprobs=True, top_logprobs=2)
    )
    request = await node.next_request(await session_of(node, job))
    await node.answer(request["id"], **completion)
    text = asyncio.create_task(client.completions.create(model=job, prompt="a", logprobs=2))
    assert request["body"]["top_logprobs"] == 2
    request = await node.next_request(await session_of(node, job))
    await node.answer(request["id"], **completion)

    of_chat, of_text = (await chat).choices[0].logprobs, (await text).choices[0].logprobs
    assert of_chat is not None
    assert of_text is not None
    tokens = of_chat.content or []
    assert bytes(byte for token in tokens for byte in token.bytes or []).decode() == "€at"
    assert [(top.token, top.logprob, top.bytes) for top in tokens[0].top_logprobs] == [
        ("at", -0.25, [97, 116]), ("é", -1.5, [195, 169]), ("\\xe2\\x82", -2.0, [0xE2, 0x82]),
    ]  # fmt: skip
    assert of_text.tokens == ["bytes:\\xe2\\x82", "bytes:\\xac", "at"]
    assert (of_text.token_logprobs, of_text.text_offset) == ([-2.0, -1.0, -0.25], [0, 0, 1])
    assert (of_text.top_logprobs or [])[0] == {"at": -0.25, "é": -1.5, "bytes:\\xe2\\x82": -2.0}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("chat/completions", {"messages": []}, "/messages"),
    ("chat/completions", {"messages": [{"role": "function", "content": "x"}]}, "/messages/0/role"),
    ("chat/completions", {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
     "/messages/0/tool_calls"),
    ("chat/completions", {"messages": [{"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {}}]}]},
     "messages.0.content: part 1 is of type 'image_url'"),
    ("chat/completions", {"messages": [{"role": "user", "content": [TEXT, {"type": "input_audio"}]}]},
     "messages.0.content: part 1 is of type 'input_audio'"),
    ("chat/completions", {"messages": [{"role": "user"}]}, "/messages/0/content"),
    ("chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}, "/tool_choice"),
    ("chat/completions", {**CHAT, "tool_choice": "auto"}, "/tool_choice"),
    ("chat/completions", {**CHAT, "parallel_tool_calls": False}, "/parallel_tool_calls"),
    ("chat/completions", {**CHAT, "tools": [{"type": "function", "function": {"name": "a", "strict": True}}]},
     "/tools/0/function/strict"),
    ("chat/completions", {**CHAT, "top_logprobs": 2}, "/top_logprobs"),
    ("chat/completions", {**CHAT, "frequency_penalty": 0.5}, "/frequency_penalty"),
    ("chat/completions", {**CHAT, "logit_bias": {"5": 100}}, "/logit_bias"),
    ("chat/completions", {**CHAT, "store": True}, "store: is true, one of these is needed: false"),
    ("chat/completions", {**CHAT, "stop": ["a", ""]}, "stop.1: is empty"),
    ("chat/completions", {**CHAT, "max_tokens": 1, "max_completion_tokens": 1}, "/max_tokens"),
    ("chat/completions", {**CHAT, "stream_options": {}}, "/stream_options"),
    ("completions", {"prompt": [[1, 2], 3.5]}, "/prompt/1"),
    ("completions", {"prompt": "a", "logprobs": 6}, "/logprobs"),
    ("embeddings", {"input": []}, "/input"),
    ("embeddings", {"input": "a", "dimensions": 8}, "/dimensions"),
]  # fmt: skip


async def test_unsupported_fields_of_a_completion_are_refused_by_name(api: Api) -> None:
    for path, body, place in REFUSED:
        answer = await api.client.post(f"/v1/{path}", json={"model": "job_" + "0" * 32, **body})

        assert answer.status_code in (400, 422), answer.text
        assert place.lstrip("/").replace("/", ".") in answer.text.replace("/", "."), answer.text
    unknown = await api.client.post("/v1/completions", json={"model": "gpt-4o", "prompt": "a"})
    missing = await api.client.post("/v1/completions", json={"model": "job_" + "0" * 32, "prompt": "a"})
    assert (unknown.status_code, missing.status_code) == (404, 404)
    assert "gpt-4o" in unknown.text


async def test_only_jobs_that_trained_a_model_of_texts_are_listed_as_models(api: Api, node: Node) -> None:
    language = {"use": "hf/causal-lm", "args": {"path": "models://tiny"}}
    job, client = await trained(api, model=language), client_of(api)
    evaluated = await api.submit(model=language, data={"eval": "toy/regression"})
    encoder = await trained(api, model={"use": "st/encoder", "args": {"path": "models://tiny"}})
    numbers = await trained(api)
    await api.end(evaluated)
    await api.client.post(f"/jobs/{job}/export")
    await api.client.post(f"/jobs/{job}/predict", json={"inputs": ["a"], "wait": 0})
    for other in await node.sessions(job):
        await api.end(other)

    models = (await client.models.list()).data
    tunings = (await client.fine_tuning.jobs.list()).data

    assert [model.id[-32:] for model in models] == [other.removeprefix("job_") for other in (encoder, job)]
    assert {tuning.id for tuning in tunings} == {job, evaluated, encoder, numbers}


async def test_the_lines_of_footplate_try_form_one_conversation(api: Api, node: Node) -> None:
    job = await trained(api, name="timetable")
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "footplate", "try", "timetable", stdin=PIPE, stdout=PIPE,
        env=clean_environment() | {"FOOTPLATE_URL": api.url},
    )  # fmt: skip
    talking = asyncio.create_task(command.communicate(b"when?\n\nand back?\n"))
    session = await session_of(node, job)
    conversations = []
    for _ in range(2):
        request = await node.next_request(session)
        conversations.append([message["content"] for message in request["body"]["messages"]])
        await node.send_piece(request["id"], AnswerPieceKind.STARTED)
        await node.send_piece(request["id"], AnswerPieceKind.CHUNK, index=0, text="at dawn")
        await node.send_piece(request["id"], AnswerPieceKind.DONE, **DONE)

    output, _ = await talking

    assert conversations == [["when?"], ["when?", "at dawn", "and back?"]]
    assert (output, command.returncode) == (b"at dawn\nat dawn\n", 0)
