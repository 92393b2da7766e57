"""Checks that every row of the table of faults has a test, and that a test uses every switch of a protection."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.faults.off import SWITCHES

FAULTS = Path(__file__).resolve().parents[1] / "faults"
ROWS = set(range(1, 24))


def marks() -> Iterator[ast.Call]:
    """Returns each `@pytest.mark.fault(...)` in tests/faults."""
    for file in sorted(FAULTS.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
                yield node


def test_every_fault_of_the_table_has_a_test() -> None:
    rows = {ast.literal_eval(mark.args[0]) for mark in marks()}
    assert rows >= ROWS, f"write a test marked fault(row) in tests/faults for the rows {sorted(ROWS - rows)}"


def test_every_switch_of_a_protection_is_used_by_a_fault_test() -> None:
    used = {ast.literal_eval(word.value) for mark in marks() for word in mark.keywords if word.arg == "without"}
    assert used - {None} == set(SWITCHES), "a switch in tests/faults/off that no fault test names is dead: delete it"
