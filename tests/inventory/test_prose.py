"""Tests that the prose check refuses what STYLE forbids. `make check` shows that it accepts the tree's sentences."""

from __future__ import annotations

import pytest

from docs.prose import MAX_TEST_NAME, check_page, check_python

LONG = "Returns " + "one word after another " * 8 + "and the last."
FUNCTION = 'def slots():\n    """{}"""\n'


def rules(source: str, *, is_test: bool = False) -> list[str]:
    return [rule for _, rule, _ in violations(source, is_test=is_test)]


def violations(source: str, *, is_test: bool = False) -> list[tuple[int, str, str]]:
    reports: list[tuple[int, str, str]] = []
    check_python(source, lambda *report: reports.append(report), is_test=is_test)
    return reports


def page_rules(text: str) -> list[str]:
    reports: list[str] = []
    check_page(text, lambda line, rule, advice: reports.append(rule))
    return reports


@pytest.mark.parametrize(
    ("docstring", "rule"),
    [
        ("Of a node: the slots that are free now.", "first-word"),
        ("Whether the node has free slots.", "first-word"),
        ("Nobody waits here for the node's slots.", "first-word"),
        ("By 16 connections, again and again.", "first-word"),
        ("Asks the warm parent for a process.", "first-word"),
        ("Free slots now.", "short-docstring"),
        ("returns the slots that are free.", "first-line"),
        ("Returns the slots that are free", "first-line"),
        ("Returns the slots that are free, and those\n    that become free.", "first-line"),
        (LONG, "long-sentence"),
        ("Returns slots: free ones; then others.", "colons"),
        ("Starts the node anew after a crash.", "word"),
        ("Mends the table of the node's slots.", "word"),
        ("Returns False if this is no node.", "word"),
        ("Reads slots as the reference's Trainer does.", "word"),
        ("Returns groups of so many slots each.", "word"),
        ("Raises Unavailable if Redis is away.", "word"),
        ("Returns what the node tells the service.", "word"),
    ],
)
def test_every_kind_of_unclear_docstring_is_refused_for_its_reason(docstring: str, rule: str) -> None:
    assert rules(FUNCTION.format(docstring)) == [rule]


def test_the_line_of_a_violation_is_the_line_of_its_paragraph() -> None:
    source = f'"""Returns free slots.\n\nThe second paragraph.\n\n{LONG}\n"""\n# All is well.\nmend = "mend this now"\n'

    assert [(line, rule) for line, rule, _ in violations(source)] == [(5, "long-sentence"), (8, "word")]


def test_the_docstring_of_a_field_may_be_short_and_wrap() -> None:
    assert rules('class Node:\n    slots: int\n    """Free\n    slots."""\n') == []
    assert rules('class Node:\n    slots: int\n    """Of the node, free ones."""\n') == ["first-word"]


def test_comments_are_read_as_paragraphs() -> None:
    assert rules("# Starts the node\n# anew.\nx = 1\n") == ["word"]
    assert rules(f"x = 1  # {LONG}\n") == ["long-sentence"]
    assert rules("import a  # noqa: F401: a; b; c\n# type: ignore[a]: b; c; d\n") == []


def test_messages_of_the_product_are_checked_and_those_of_tests_are_not() -> None:
    source = 'raise ValueError(f"{name!r} is no node; start it")\n'

    assert rules(source) == ["word"]
    assert rules(source, is_test=True) == []


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    told = 1\n",
        "for each in nodes: pass\n",
        "names = [one for one in nodes]\n",
        "with node as given: pass\n",
        "if found := find(): pass\n",
        "nodes.sort(key=lambda one: one.name)\n",
        "(a, known) = 1, 2\n",
    ],
)
def test_a_variable_without_a_noun_is_refused(source: str) -> None:
    assert rules(source) == ["local-name"]


def test_a_test_name_has_a_length_limit() -> None:
    longest = "test_".ljust(MAX_TEST_NAME, "a")

    assert rules(f"def {longest}(): pass\n") == []
    assert rules(f"async def {longest}a(): pass\n") == ["test-name"]


def test_a_page_is_checked_without_its_code_and_headings() -> None:
    assert page_rules("# Nodes: slots; more; anew\n\n```\nanew: a; b; c\n```\n\n[Nodes](a.md) have slots.\n") == []
    assert page_rules("A node starts\nanew.\n") == ["word"]
    assert page_rules("| node | it is away |\n") == ["word"]
    assert page_rules("- one item: a\n- two items: b\n") == []
