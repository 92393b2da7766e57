"""JSON Schemas of the rows that TRL's trainers accept: texts, chosen and rejected pairs, rated answers, prompts."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_TEXT_PART: Schema = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _TEXT},
    "additionalProperties": False,
}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
        "content": {"type": ["string", "array", "null"], "minItems": 1, "items": _TEXT_PART},
        "tool_calls": {"type": ["array", "null"]},
        "weight": {"enum": [0, 1, None]},
    },
    "anyOf": [{"required": ["content"]}, {"required": ["tool_calls"]}],
}
_NO_PROMPT: Schema = {"type": "null"}
_MESSAGES: Schema = {"type": "array", "minItems": 1, "items": _MESSAGE}
_FROM_AND_VALUE: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "object", "required": ["from", "value"], "properties": {"from": _TEXT, "value": _TEXT}},
}


def _form(title: str, **columns: Schema) -> Schema:
    required = [name for name, column in columns.items() if column is not _NO_PROMPT]
    return {"title": title, "type": "object", "required": required, "properties": columns}


TEXTS = [
    _form("text", text=_TEXT),
    _form("messages", messages=_MESSAGES),
    _form("prompt and completion", prompt=_TEXT, completion=_TEXT),
    _form("prompt and completion as messages", prompt=_MESSAGES, completion=_MESSAGES),
    _form("conversations of from and value", conversations=_FROM_AND_VALUE),
    _form("input_ids", input_ids={"type": "array", "minItems": 1, "items": {"type": "integer"}}),
]
PAIRS = [
    _form("prompt, chosen and rejected", prompt=_TEXT, chosen=_TEXT, rejected=_TEXT),
    _form("prompt, chosen and rejected as messages", prompt=_MESSAGES, chosen=_MESSAGES, rejected=_MESSAGES),
    _form("chosen and rejected, which begin with the prompt", prompt=_NO_PROMPT, chosen=_TEXT, rejected=_TEXT),
    _form(
        "chosen and rejected as messages, which begin with the prompt",
        prompt=_NO_PROMPT,
        chosen=_MESSAGES,
        rejected=_MESSAGES,
    ),
]
RATED = [
    _form("prompt, completion and label", prompt=_TEXT, completion=_TEXT, label={"type": "boolean"}),
    _form(
        "prompt, completion and label as messages", prompt=_MESSAGES, completion=_MESSAGES, label={"type": "boolean"}
    ),
    *PAIRS,
]
PROMPTS = [_form("prompt", prompt=_TEXT), _form("prompt as messages", prompt=_MESSAGES)]
