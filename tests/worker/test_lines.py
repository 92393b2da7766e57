"""Tests the lines that training prints: complete, cut if too long, and limited in number."""

from __future__ import annotations

import time

import pytest

from worker.attempt.rank_process import BURST_LINES, MAX_LINE_CHARS, REDRAW_SECONDS, PrintedLines


def texts(events: list[dict[str, object]]) -> list[object]:
    return [event["data"]["text"] for event in events]  # type: ignore[index]


def test_printed_lines_are_complete_however_their_bytes_are_split() -> None:
    lines = PrintedLines("stdout")

    assert texts(lines.read(b"one\ntw")) == ["one"]
    assert texts(lines.read(b"o\r\nthr\xc3")) == ["two"]
    assert texts(lines.read(b"\xa9e\r")) == []
    assert texts(lines.read(b"\nfour")) == ["thrée"]
    assert texts(lines.read(b"")) == ["four"]


def test_a_progress_bar_becomes_one_line_with_its_last_state() -> None:
    assert texts(PrintedLines("stderr").read(b"\r10%\r20%\r   \r30%\r\n\ndone\n")) == ["30%", "", "done"]


def test_a_progress_bar_is_reported_at_intervals_and_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    lines = PrintedLines("stderr")

    assert texts(lines.read(b"\r10%\r11%")) == ["10%"]
    assert texts(lines.read(b"\r12%\r13%")) == []
    seconds += REDRAW_SECONDS
    assert texts(lines.read(b"\r14%\r15%")) == ["14%"]
    assert texts(lines.read(b"\r16%\n")) == ["16%"]


def test_a_progress_bar_inside_another_progress_bar_becomes_a_single_line() -> None:
    up = b"\x1b[A"
    inner = b"".join(b"\n\r%d%%%b" % (percent, up) for percent in range(100))

    assert texts(PrintedLines("stderr").read(b"\r 5%" + inner + b"\n\r    " + up + b"\r 6%\n")) == [" 5%", "0%", " 6%"]


def test_colours_of_a_terminal_are_removed() -> None:
    assert texts(PrintedLines("stdout").read(b"\x1b[1;31mred\x1b[0m\n")) == ["red"]


def test_a_long_line_is_cut_and_names_the_number_of_cut_characters() -> None:
    [event] = PrintedLines("stdout").read(b"x" * (MAX_LINE_CHARS + 5) + b"\n")

    assert len(event["data"]["text"]) == MAX_LINE_CHARS
    assert event["data"]["cut"] == 5


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    lines = PrintedLines("stdout")

    events = [event for _ in range(200) for event in lines.read(b"x" * 1000)]

    assert events
    assert all(len(event["data"]["text"]) == MAX_LINE_CHARS for event in events)


def test_lines_above_the_rate_limit_are_counted_as_left_out() -> None:
    lines = PrintedLines("stdout")
    indexes = [event for _ in range(100) for event in lines.read(b"line\n" * 1000)]
    indexes += lines.read(b"")

    left_out = sum(event["data"].get("left_out", 0) for event in indexes)
    indexed = sum("left_out" not in event["data"] for event in indexes)
    assert left_out + indexed == 100_000
    assert BURST_LINES <= indexed < BURST_LINES + 1000
    assert "left out" in indexes[-1]["data"]["text"]


def test_the_tail_ends_with_the_last_printed_line() -> None:
    lines = PrintedLines("stderr")
    lines.read(b"".join(b"%d\n" % n for n in range(5000)))

    assert lines.tail[-1] == "4999"
