"""Formats a serving session's answers as OpenAI's API does, as one answer or as server-sent events."""

from __future__ import annotations

import codecs
import json
import struct
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

from footplate.contract.errors import FootplateError
from footplate.contract.fields import Json
from footplate.contract.ids import uuid7
from footplate.contract.serving import AnswerPiece, AnswerPieceKind

LAST_EVENT = b"data: [DONE]\n\n"
_incremental_utf8 = codecs.getincrementaldecoder("utf-8")


class AnswerForm:
    """Formats the choices of an answer as OpenAI does, for `/chat/completions` or for `/completions`."""

    def __init__(self, is_chat: bool, calls_at_once: bool, is_sent_whole: bool) -> None:
        """Makes a form. If `is_sent_whole`, the session sends no parts of a text, which may be a tool call."""
        self.is_chat, self.is_sent_whole, self._calls_at_once = is_chat, is_sent_whole, calls_at_once
        self._offsets: dict[int, int] = {}
        """The number of characters whose tokens were already sent, by the index of the choice."""
        self._decoders: dict[int, codecs.IncrementalDecoder] = {}
        """The decoder of the tokens' bytes, by the index of the choice. A character may have several tokens."""

    def choice(self, choice: Json) -> Json:
        text, calls = choice["text"], self.calls(choice)
        message = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        content = {"message": message | ({"tool_calls": calls} if calls else {})} if self.is_chat else {"text": text}
        finish_reason = choice["finish_reason"]
        return {"index": choice["index"], **content, "logprobs": self.logprobs(choice), "finish_reason": finish_reason}

    def calls(self, choice: Json) -> list[Json]:
        """Returns the tool calls in an answer, with their arguments as JSON strings."""
        calls = choice.get("tool_calls") or []
        return [
            {"id": f"call_{uuid7()}", "type": "function",
             "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}}
            for call in (calls if self._calls_at_once else calls[:1])
        ]  # fmt: skip

    def logprobs(self, choice: Json) -> Json | None:
        """Returns the log-probabilities of a choice's tokens, or None if the request did not ask for them."""
        tokens = choice.get("logprobs")
        if tokens is None:
            return None
        if self.is_chat:
            entries = [_with_bytes(token) | {"top_logprobs": list(map(_with_bytes, token["top"]))} for token in tokens]
            return {"content": entries, "refusal": None}
        offsets, decoder = [], self._decoders.setdefault(choice["index"], _incremental_utf8("ignore"))
        for token in tokens:
            offsets.append(self._offsets.get(choice["index"], 0))
            content = bytes(_bytes_of(token))
            self._offsets[choice["index"]] = offsets[-1] + len(decoder.decode(content))
        return {
            "tokens": [_name_of(token) for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [
                {_name_of(likely_token): likely_token["logprob"] for likely_token in token["top"]} for token in tokens
            ],
            "text_offset": offsets,
        }


def _with_bytes(token: Json) -> Json:
    return {"token": token["token"], "logprob": token["logprob"], "bytes": _bytes_of(token)}


def _bytes_of(token: Json) -> list[int]:
    """Returns the bytes of a token. The session sends bytes only if the token is a part of a character."""
    return token.get("bytes") or list(token["token"].encode())


def _name_of(token: Json) -> str:
    """Returns a token's text as `/completions` of OpenAI shows it: bytes that are not a text have a prefix."""
    return f"bytes:{token['token']}" if "bytes" in token else str(token["token"])


async def stream_events(
    pieces: AsyncIterator[AnswerPiece], common_fields: Json, form: AnswerForm, *, with_usage: bool
) -> AsyncIterator[bytes]:
    """Yields the answer's events. The session's error is an event too, because the status has already been sent."""
    begun_indexes: set[int] = set()
    # With include_usage, each event has a usage of null, as OpenAI's events do, and the last one has the numbers.
    usage: Json = {"usage": None} if with_usage else {}

    def event(*choices: Json, **fields: Any) -> bytes:
        data = {**common_fields, "choices": choices, **usage, **fields}
        return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()

    def part(choice: Json, delta: Json, text: str = "", finish_reason: str | None = None) -> bytes:
        """Returns an event with the next text of a choice, which is in `delta` for a chat, and in `text` otherwise."""
        content = {"delta": delta} if form.is_chat else {"text": text}
        logprobs = form.logprobs(choice)
        return event({"index": choice["index"], **content, "logprobs": logprobs, "finish_reason": finish_reason})

    def begin(index: int) -> bytes:
        is_new = index not in begun_indexes
        begun_indexes.add(index)
        return part({"index": index}, {"role": "assistant", "content": ""}) if form.is_chat and is_new else b""

    def complete_choice(choice: Json) -> bytes:
        calls = [{"index": call_index, **call} for call_index, call in enumerate(form.calls(choice))]
        delta = ({"content": choice["text"]} if choice["text"] else {}) | ({"tool_calls": calls} if calls else {})
        return part(choice, delta) if delta else b""

    try:
        async for piece in pieces:
            if piece.kind is AnswerPieceKind.CHUNK:
                text = piece.data["text"]
                yield begin(piece.data["index"]) + part(piece.data, {"content": text}, text)
                continue
            for choice in piece.data["choices"]:
                last_event = part({"index": choice["index"]}, {}, finish_reason=choice["finish_reason"])
                yield begin(choice["index"]) + (complete_choice(choice) if form.is_sent_whole else b"") + last_event
            if with_usage:
                yield event(usage=usage_of(piece.data))
            yield LAST_EVENT
    except FootplateError as error:
        # OpenAI's clients raise the error of such an event.
        sentence = error.message + (f" ({error.hint})" if error.hint else "")
        failure = {"message": sentence, "type": "server_error", "param": None, "code": error.code}
        yield f"data: {json.dumps({'error': failure})}\n\n".encode()


def usage_of(data: Json) -> Json:
    prompt_tokens, completion_tokens = data["prompt_tokens"], sum(choice["tokens"] for choice in data["choices"])
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def packed(vector: list[float | str]) -> str:
    """Returns a vector as OpenAI's base64, which is little-endian 32-bit floats. NaN and infinities arrive as texts."""
    return b64encode(struct.pack(f"<{len(vector)}f", *map(float, vector))).decode()
