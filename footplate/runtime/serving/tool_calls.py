"""Reads calls of tools from a generated text, in the form in which the model's chat template writes them.

`parse_response` of transformers reads the calls. It needs a description of the form: the tokenizer's own, or
TRL's, which covers the templates of common models. Other templates that write `<tool_call>` are read in the form of
Hermes and Qwen.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

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
