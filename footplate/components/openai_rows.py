"""Converts rows and graders of OpenAI's fine-tuning API to the formats of TRL's trainers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from footplate.components.maps import mapped
from footplate.components.rows import BadRow, Row

Grade = Callable[[dict[str, Any], dict[str, Any]], Any]


def preferences(rows: Any, /) -> Any:
    """Turns input, preferred_output and non_preferred_output into the columns prompt, chosen and rejected."""
    return mapped(rows, _preferences)


def _preferences(rows: list[Row]) -> list[Row]:
    return [_preference(row, at) for at, row in enumerate(rows)]


def _preference(row: Row, at: int) -> Row:
    question = row.get("input")
    if not isinstance(question, dict) or "messages" not in question:
        raise BadRow(at, "column 'input' holds no messages", hint='for example {"messages": [{"role": "user", …}]}')
    for name in ("preferred_output", "non_preferred_output"):
        if not isinstance(row.get(name), list):
            raise BadRow(at, f"column {name!r} holds no list of messages")
    changed = {
        "prompt": question["messages"],
        "chosen": row["preferred_output"],
        "rejected": row["non_preferred_output"],
    }
    return changed | ({"tools": question["tools"]} if question.get("tools") else {})


def reward_of(grade: Grade) -> Callable[..., list[float]]:
    """Returns a reward function that calls `grade(sample, item)` for each completion, as OpenAI's Python grader does.

    A sample has the completion as `output_text`, `output_json` and `choices`. An item is the completion's row.
    """

    def grader(completions: list[Any], prompts: list[Any], **columns: Any) -> list[float]:
        items = _items(prompts, columns)
        return [_reward(grade(_sample(completion), item)) for completion, item in zip(completions, items, strict=True)]

    return grader


def _reward(grade: object) -> float:
    if isinstance(grade, int | float) and math.isfinite(grade):
        return float(grade)
    raise ValueError(f"the grader returned {str(grade)[:80]}: return a finite number from `grade` for every sample")


def _items(prompts: list[Any], columns: dict[str, Any]) -> Iterator[Row]:
    of_rows = {
        name: values for name, values in columns.items() if isinstance(values, list) and len(values) == len(prompts)
    }
    for index, prompt in enumerate(prompts):
        yield {"messages": prompt, **{name: values[index] for name, values in of_rows.items()}}


def _sample(completion: Any) -> dict[str, Any]:
    messages = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    text = "".join(message.get("content") or "" for message in messages)
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    choices = [{"index": 0, "message": message} for message in messages[-1:]]
    return {"output_text": text, "output_json": value, "output_tools": calls, "choices": choices}
