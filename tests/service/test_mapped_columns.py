"""Tests that the columns named by maps are checked through `data.map`."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.contract.spec_parts import Component
from service.jobs.mapped_columns import column_problems

LABELS = ("labels", {})
RENAME = ("rename", {"columns": {"verdict": "label"}})


@pytest.mark.parametrize(
    ("maps", "pointers"),
    [
        ([RENAME, LABELS, ("tokenize", {"column": "review"})], []),
        ([RENAME, ("labels", {"column": "verdict"})], ["/data/map/1/args/column"]),
        ([LABELS], ["/data/map/0/args/column"]),
        ([("tokenize", {"column": "text", "pair": "review"})], ["/data/map/0/args/column"]),
        ([("keep", {"columns": ["review"]}), RENAME, LABELS], ["/data/map/1/args/columns/verdict"]),
        ([("drop", {"columns": ["review", "id"]})], ["/data/map/0/args/columns/1"]),
        ([("keep", {"columns": ["id"]}), ("drop", {"columns": ["id"]})], ["/data/map/0/args/columns/0"]),
        ([("tokenize", {"column": "review"}), ("drop", {"columns": ["input_ids"]})], []),
        ([("my_code:anything", {"column": "x"}), ("drop", {"columns": ["y"]})], []),
        ([("rename", {"columns": "a wrong type"}), ("drop", {"columns": ["y"]})], []),
    ],
)  # fmt: skip
def test_a_missing_column_is_a_problem_at_the_map_that_names_it(
    maps: list[tuple[str, dict[str, Any]]], pointers: list[str]
) -> None:
    parts = [Component(use=use, args=args) for use, args in maps]

    assert [problem.pointer for problem in column_problems({"review", "verdict"}, parts)] == pointers
