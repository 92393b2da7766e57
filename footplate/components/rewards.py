"""Reward functions for trainers that learn from rewards. Each returns one number for each completion.

A trainer calls them with lists: `completions`, `prompts`, and every further column of the rows. A completion is a text,
or a list of messages if the prompt is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from importlib import import_module
from typing import Annotated, Any

from footplate.components.component import needs
from footplate.contract.errors import DatasetError, NotBuildable, did_you_mean

Reward = Callable[..., list[float]]
Column = Annotated[str, "The column with the expected answer"]
IgnoreCase = Annotated[bool, "Upper and lower case are equal"]


def equals(*, column: Column = "answer", ignore_case: IgnoreCase = False) -> Reward:
    """Returns 1 for a completion that equals the expected answer, and 0 for others. Spaces around both are ignored."""
    return _comparison("equals", lambda text, answer: float(text == answer), column, ignore_case)


def similarity(*, column: Column = "answer", ignore_case: IgnoreCase = False) -> Reward:
    """Returns how similar a completion is to the expected answer, from 0 to 1 (difflib's ratio)."""

    def ratio(text: str, answer: str) -> float:
        return SequenceMatcher(None, text, answer, autojunk=False).ratio()

    return _comparison("similarity", ratio, column, ignore_case)


def matches(*, pattern: Annotated[str, "A regular expression that is searched in the completion"]) -> Reward:
    """Returns 1 for a completion in which the pattern is found, and 0 for others."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise NotBuildable(f"matches: the pattern is not a regular expression: {error}") from error

    def matches(completions: list[Any], **columns: Any) -> list[float]:
        return [float(compiled.search(text_of(completion)) is not None) for completion in completions]

    return matches


@needs("trl", extra="trl")
def accuracy() -> Reward:
    """Compares the completion's mathematical value with the column `solution` (TRL's accuracy_reward)."""
    return import_module("trl.rewards").accuracy_reward  # type: ignore[no-any-return]


@needs("trl", extra="trl")
def think_format() -> Reward:
    """Returns 1 if the completion has its reasoning between <think> and </think> (TRL's think_format_reward)."""
    return import_module("trl.rewards").think_format_reward  # type: ignore[no-any-return]


def text_of(completion: Any) -> str:
    """Returns the text of a completion, which may be a list of messages."""
    if isinstance(completion, str):
        return completion
    return "".join(message["content"] or "" for message in completion)


def _comparison(name: str, compare: Callable[[str, str], float], column: str, ignore_case: bool) -> Reward:
    """Returns a reward function that compares each completion with its answer. Trainers log rewards by its name."""

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        if column not in columns:
            raise DatasetError(
                f"a reward compares completions with the column {column!r}, which the rows lack",
                hint=did_you_mean(column, columns),
            )
        pairs = zip(map(text_of, completions), map(str, columns[column]), strict=True)
        return [compare(*(text.strip().casefold() if ignore_case else text.strip() for text in pair)) for pair in pairs]

    reward.__name__ = name
    return reward
