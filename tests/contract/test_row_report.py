"""Tests the report that the service makes of an uploaded file of rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from footplate.contract import row_report
from footplate.contract.row_report import RowReport


@pytest.fixture
def report_of(tmp_path: Path) -> Any:
    def report(content: bytes, kind: str = "jsonl", **options: Any) -> dict[str, Any]:
        path = tmp_path / "rows"
        path.write_bytes(content)
        return RowReport(**options).read(path, kind).as_json()

    return report


def types(report: dict[str, Any]) -> dict[str, list[tuple[str, int, int]]]:
    return {
        column["name"]: [(count["type"], count["rows"], count["first"]) for count in column["types"]]
        for column in report["columns"]
    }


def numbers(report: dict[str, Any]) -> list[int]:
    return [bad["number"] for bad in report["first_bad"]]


def test_the_report_lists_the_types_of_each_column_with_their_first_row(report_of: Any) -> None:
    report = report_of(b'{"x": 1, "y": "a"}\n\n{"x": "2", "y": null}\n{"x": 3, "y": "long"}\n')

    assert (report["rows"], report["bad_rows"], report["is_complete"]) == (3, 0, True)
    assert types(report) == {"x": [("integer", 2, 1), ("string", 1, 3)], "y": [("string", 2, 1), ("null", 1, 3)]}
    assert [column["longest"] for column in report["columns"]] == [1, 4]


def test_rows_that_lack_a_column_are_counted_and_the_first_is_named(report_of: Any) -> None:
    report = report_of(b'{"x": 1}\n{"x": 1, "late": 2}\n{"late": 2}\n')

    missing = {column["name"]: (column["missing"], column["first_missing"]) for column in report["columns"]}
    assert missing == {"x": (1, 3), "late": (1, 1)}


def test_bad_lines_are_listed_by_number_and_good_rows_are_counted(report_of: Any) -> None:
    report = report_of(b"{\"x\": 1}\n{'x': 1}\n\n[1]\n\xff\n" + b"[" * 100_000 + b'\n{"x": 2}\n')

    assert (report["rows"], report["bad_rows"], numbers(report)) == (2, 4, [2, 4, 5, 6])
    assert "{'x': 1}" in report["first_bad"][0]["problem"]


def test_a_csv_report_continues_after_bad_records_and_counts_lines_of_the_file(report_of: Any) -> None:
    report = report_of(b'text,label\n"two\nlines",1\nthree,values,here\n\xff,1\nok,007\n,0.5\n', "csv")

    assert (report["rows"], numbers(report)) == (3, [4, 5])
    assert types(report) == {
        "text": [("string", 2, 2), ("null", 1, 7)],
        "label": [("integer", 1, 2), ("string", 1, 6), ("number", 1, 7)],
    }


def test_a_csv_value_may_be_as_long_as_a_document(report_of: Any) -> None:
    report = report_of(b"text\n" + b"word " * 100_000 + b"\n", "csv")

    assert (report["bad_rows"], report["columns"][0]["longest"]) == (0, 500_000)


def test_a_csv_header_with_numbers_or_repeated_names_is_reported(report_of: Any) -> None:
    assert "columns" in report_of(b"great film,1\nbad film,0\n", "csv")["notes"][0]
    assert numbers(report_of(b"x\tx\n1\t2\n", "tsv")) == [1]


def test_another_csv_delimiter_and_single_quotes_in_json_get_a_hint(report_of: Any) -> None:
    assert '"delimiter": ";"' in report_of(b"text;label\na;1\n", "csv")["notes"][0]
    assert "double quotes" in report_of(b"{'text': 1}\n")["first_bad"][0]["problem"]


def test_every_line_of_a_text_file_is_a_row(report_of: Any) -> None:
    report = report_of(b"\xef\xbb\xbfone\r\n\n  \ntwo\n", "txt")

    assert (report["rows"], types(report)) == (2, {"text": [("string", 2, 1)]})
    assert report["columns"][0]["longest"] == 3


def test_tokens_are_counted_in_texts_and_in_the_messages_of_a_conversation(report_of: Any) -> None:
    messages = '{"m": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}], "t": "one"}\n'

    report = report_of(messages.encode() * 3, count_tokens=lambda text: len(text.split()))

    three = {"least": 3, "median": 3, "p95": 3, "most": 3, "total": 9}
    assert [column["tokens"] for column in report["columns"]] == [
        three,
        {name: value // 3 for name, value in three.items()},
    ]


def test_the_size_of_a_report_is_limited_and_omissions_are_noted(
    report_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_report, "MOST_LINE_BYTES", 1000)
    many = ", ".join(f'"column{index}": 1' for index in range(50))
    report = report_of(
        f"{{{many}}}\n{{{many.replace('n', 'm')}}}\n{{{many.replace('c', 'k')}}}\n".encode()
        + b"x" * 5000
        + b"\nbad" * 100
    )

    assert (len(report["columns"]), report["bad_rows"], len(report["first_bad"])) == (100, 100, 20)
    assert (report["is_complete"], len(report["notes"])) == (False, 2)
    assert numbers(report)[0] == 5


def test_a_check_that_reaches_its_deadline_reports_the_number_of_rows_read(report_of: Any) -> None:
    report = report_of(b'{"x": 1}\n' * 1000, deadline=time.monotonic())

    assert report["rows"] < 1000
    assert not report["is_complete"]
    assert f"{report['rows']} rows" in report["notes"][0]
