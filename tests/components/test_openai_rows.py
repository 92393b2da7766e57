"""Rows and graders in OpenAI's formats become those of TRL's trainers."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.components.openai_rows import preferences, reward_of
from footplate.contract.errors import DatasetError

QUESTION = [{"role": "user", "content": "2 + 2?"}]
GOOD, BAD = [{"role": "assistant", "content": "4"}], [{"role": "assistant", "content": "5"}]


def test_a_preference_becomes_prompt_chosen_and_rejected() -> None:
    row = {"input": {"messages": QUESTION, "tools": []}, "preferred_output": GOOD, "non_preferred_output": BAD}

    assert preferences([row])[0] == {"prompt": QUESTION, "chosen": GOOD, "rejected": BAD}
    with pytest.raises(DatasetError, match="non_preferred_output"):
        preferences([{"input": {"messages": QUESTION}, "preferred_output": GOOD}])[0]


def test_a_grader_receives_each_completion_together_with_its_row() -> None:
    calls: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def grade(sample: dict[str, Any], item: dict[str, Any]) -> float:
        calls.append((sample, item))
        return float(sample["output_text"] == item["answer"])

    rewards = reward_of(grade)(
        completions=[GOOD, '{"x": 1}'], prompts=[QUESTION, "2 + 3?"], answer=["4", "5"], trainer_state=object()
    )

    assert rewards == [1.0, 0.0]
    assert calls[0][1] == {"messages": QUESTION, "answer": "4"}
    assert calls[0][0]["choices"][0]["message"] == GOOD[0]
    assert [sample["output_json"] for sample, _ in calls] == [4, {"x": 1}]


@pytest.mark.parametrize("grade", [None, float("nan"), "4"])
def test_a_grader_that_returns_no_finite_number_is_named(grade: Any) -> None:
    with pytest.raises(ValueError, match=f"the grader returned {grade}: return a finite number"):
        reward_of(lambda sample, item: grade)(completions=[GOOD], prompts=[QUESTION])
