"""Converts tokens to text: a whole answer, the calls of tools in it, or one token for a list of probabilities.

`parse_response` of transformers reads the calls, in the form in which the model's chat template writes them. It needs a
description of the form: the tokenizer's own, or TRL's, which covers the templates of common models. Other templates
that write `<tool_call>` are read in the form of Hermes and Qwen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

REPLACEMENT = "\ufffd"
"""The decoder's output for an incomplete character, whose other bytes are in the next token."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")

Json = dict[str, Any]

HERMES: Json = {
    "defaults": {"role": "assistant"},
    "start_anchor_pattern": r"\Z",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}


def decoded(tokenizer: Any, tokens: Sequence[int], *, skip_special: bool = True) -> str:
    """Returns the text of tokens. Special tokens, such as the one that ends an answer, are left out by default."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))


def token_entry(tokenizer: Any, token: int) -> dict[str, Any]:
    """Returns the text of one token, and its bytes if they are not UTF-8. Its text then shows them in hex."""
    # A tokenizer may leave out the space before the first token of a text, so the second one is read.
    single_text = decoded(tokenizer, [token], skip_special=False)
    text = decoded(tokenizer, [token, token], skip_special=False)[len(single_text) :]
    content = _bytes_of(str(tokenizer.convert_ids_to_tokens(token))) if REPLACEMENT in text else None
    if content is None:
        return {"token": text}
    entry = {"token": content.decode(errors="backslashreplace")}
    return entry if entry["token"].encode() == content else {**entry, "bytes": list(content)}


def _bytes_of(piece: str) -> bytes | None:
    """Returns the bytes that a piece of a vocabulary means, or None if the vocabulary is not one of bytes."""
    if match := _BYTE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    table = _byte_characters()
    return bytes(table[character] for character in piece) if all(character in table for character in piece) else None


@cache
def _byte_characters() -> dict[str, int]:
    """Returns the byte for each character of GPT-2's vocabulary, in which each byte is one printable character."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


def form_of_calls(tokenizer: Any) -> Json | None:
    """Returns the response template for a tokenizer, or None if the form of its calls is not known."""
    if (own_form := getattr(tokenizer, "response_template", None)) is not None:
        return own_form  # type: ignore[no-any-return]
    with suppress(ImportError, ValueError):
        from trl.chat_template_utils import add_response_schema

        return add_response_schema(tokenizer).response_template  # type: ignore[no-any-return]
    return HERMES if "<tool_call>" in tokenizer.chat_template else None


def read_calls(tokenizer: Any, answer: Sequence[int], prompt: Sequence[int], tools: Sequence[Json]) -> Json | None:
    """Returns the text and the calls of an answer. None: it has no call, or none that can be read."""
    try:
        message = tokenizer.parse_response(
            list(answer), form_of_calls(tokenizer), prefix=list(prompt), tools=list(tools)
        )
        calls = [
            {"name": str(call["function"]["name"]), "arguments": dict(call["function"].get("arguments") or {})}
            for call in message.get("tool_calls") or ()
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return {"text": message.get("content") or "", "tool_calls": calls} if calls else None
