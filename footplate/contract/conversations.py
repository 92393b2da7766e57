"""Converts chat messages in OpenAI's form to the form that chat templates read.

In OpenAI's form a content may be a list of text parts, and the arguments of a call are JSON in a text. Templates read a
content as one text and arguments as an object, and few know the role `developer`. Training and chats convert messages
in the same way, so that a model reads prompts in the form that it was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    if extra_fields := sorted(part.keys() - TEXT_PART):
        raise ValueError(f"{name} has the field {extra_fields[0][:40]!r}, and a text part has only type and text")
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


def learned(messages: Sequence[Any]) -> list[int]:
    """Returns the indices of the assistant's messages whose `weight` is not 0. A model learns these messages.

    Raises ValueError with a sentence about a weight that cannot be used, or if there is nothing to learn.
    """
    indices, answers = [], 0
    for index, message in enumerate(messages):
        role, weight = message.get("role"), message.get("weight")
        if weight is not None and role != "assistant":
            why = "but only messages from the assistant may have a weight"
            raise ValueError(f"[{index}].weight: is in a message from {role}, {why}")
        if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
            raise ValueError(f"[{index}].weight: is {str(weight)[:40]}, and must be 0 or 1")
        answers += role == "assistant"
        if role == "assistant" and weight != 0:
            indices.append(index)
    if not answers:
        raise ValueError(": has no message from the assistant, so there is nothing to learn")
    if not indices:
        raise ValueError(": all messages from the assistant have weight 0, so there is nothing to learn")
    return indices


def _with_object(call: Any) -> Any:
    try:
        arguments = json.loads(call["function"]["arguments"])
    except (TypeError, KeyError, ValueError, RecursionError):
        return call
    return {**call, "function": {**call["function"], "arguments": arguments}} if isinstance(arguments, dict) else call
