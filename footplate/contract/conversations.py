"""Reads the messages of a chat in OpenAI's form, with lists of text parts and with arguments of calls as JSON texts.

Chat templates read texts as contents and objects as arguments, and few know the role `developer`. Training and chats
use the same form, so that a model is asked in the form that it was trained on.
"""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

BETWEEN_PARTS = "\n"
"""The text between two parts. vLLM and llama.cpp join parts in the same way for templates that read texts."""
TEXT_PART = frozenset({"type", "text"})


def text_of(content: Any) -> Any:
    """Returns a list of text parts as one text, and any other content unchanged.

    Raises ValueError with a sentence about the first part that is not a text.
    """
    if not isinstance(content, list):
        return content
    if not content:
        raise ValueError("is a list without parts")
    return BETWEEN_PARTS.join(_text_of_part(part, f"part {index}") for index, part in enumerate(content))


def _text_of_part(part: Any, name: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f'{name} has no type: a text part is {{"type": "text", "text": "…"}}')
    if kind != "text":
        raise ValueError(f"{name} is of type {kind[:40]!r}, and only text parts are supported")
    if more := sorted(part.keys() - TEXT_PART):
        raise ValueError(f"{name} has the field {more[0][:40]!r}, and a text part has only type and text")
    if not isinstance(part.get("text"), str):
        raise ValueError(f"{name} has no text")
    return str(part["text"])


def plain(message: Message) -> Message:
    """Returns a message for a chat template: its content is a text, and `developer`, a newer name, becomes `system`.

    The arguments of a call become an object. A template would write a text in quotes, and models would learn that.
    """
    role = {"role": "system"} if message.get("role") == "developer" else {}
    content = {"content": text_of(message["content"])} if "content" in message else {}
    calls = message.get("tool_calls")
    objects = {"tool_calls": [_with_object(call) for call in calls]} if isinstance(calls, list) else {}
    return {**message, **role, **content, **objects}


def _with_object(call: Any) -> Any:
    try:
        arguments = json.loads(call["function"]["arguments"])
    except (TypeError, KeyError, ValueError, RecursionError):
        return call
    return {**call, "function": {**call["function"], "arguments": arguments}} if isinstance(arguments, dict) else call
