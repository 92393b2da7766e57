"""A reward function of one's own: short answers are better."""

from __future__ import annotations

from typing import Any


def brief(completions: list[Any], **columns: Any) -> list[float]:
    """Returns a reward for each completion, which is a list of messages here, because the prompts are."""
    return [1 / (1 + len(messages[0]["content"].split())) for messages in completions]
