"""Files of fine-tuning are checked line by line, and the first line that cannot be used is named."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest

from service.api.openai.rows import CHECKED_HERE_BYTES, CheckedRows, InvalidRows, check_rows, check_upload

USER = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]}
TOOL = {"role": "tool", "content": "4", "tool_call_id": "c"}
TEXT = {"type": "text", "text": "2 + 2?"}
PARTS = {"role": "user", "content": [TEXT, {"type": "text", "text": "Be brief."}]}
CHAT = {"messages": [SYSTEM, USER, ANSWER]}
PAIR = {"input": {"messages": [USER]}, "preferred_output": [ANSWER], "non_preferred_output": [ANSWER]}


def lines(*rows: Any) -> io.BytesIO:
    return io.BytesIO(b"".join(json.dumps(row).encode() + b"\n" for row in rows))


@pytest.mark.parametrize(
    ("row", "format_name"),
    [
        (CHAT, "chat"),
        ({"messages": [USER, CALL, TOOL, ANSWER], "tools": []}, "chat"),
        ({"messages": [PARTS, {"role": "assistant", "content": "😀 \\ud83d"}]}, "chat"),
        ({"messages": [USER, {**ANSWER, "refusal": None, "tool_calls": None}]}, "chat"),
        ({"messages": [USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}]}, "chat"),
        ({"prompt": "2 + 2?", "completion": "4"}, "completions"),
        (PAIR, "preference"),
        ({"messages": [USER], "reference_answer": "4"}, "prompts"),
    ],
)
def test_the_format_of_a_file_is_detected_from_its_rows(row: Any, format_name: str) -> None:
    assert check_rows(lines(row, row)) == CheckedRows(format_name, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ([1], "line 3: is a list"),
        ({"text": "4"}, "line 3: does not have the fields of any format: it has text"),
        ({"messages": []}, "messages: must be a list with at least one message"),
        ({"messages": [USER, SYSTEM, ANSWER]}, "messages[1]: a system message must come first"),
        ({"messages": [USER, TOOL, ANSWER]}, "messages[1]: a tool message must follow an assistant's tool_calls"),
        ({"messages": [ANSWER, USER]}, "ends with a message from the user"),
        ({"messages": [USER, SYSTEM]}, "messages[1]: a system message must come first"),
        ({"messages": [USER, {"role": "robot", "content": "4"}]}, "messages[1].role: is 'robot'"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content: is missing"),
        ({"messages": [USER, {**ANSWER, "weight": 0}]}, "messages: all messages from the assistant have weight 0"),
        ({"messages": [USER, {**ANSWER, "weight": 0.5}]}, "messages[1].weight: is 0.5, and must be 0 or 1"),
        ({"messages": [USER, {**ANSWER, "weight": True}]}, "messages[1].weight: is True"),
        ({"messages": [{**USER, "weight": 1}, ANSWER]}, "messages[0].weight: is in a message from user"),
        ({"messages": [PARTS, {"role": "user", "content": [TEXT, {"type": "image_url"}]}, ANSWER]},
         "messages[1].content: part 1 is of type 'image_url'"),
        ({"messages": [{"role": "user", "content": []}, ANSWER]}, "messages[0].content: is a list without parts"),
        ({"messages": [{"role": "user", "content": ["Hi"]}, ANSWER]}, "messages[0].content: part 0 has no type"),
        ({"messages": [{"role": "user", "content": [{**TEXT, "id": 1}]}, ANSWER]}, "part 0 has the field 'id'"),
        ({**CHAT, "functions": []}, "functions: is not supported"),
        ({**CHAT, "tools": {"name": "f"}}, "tools: is an object, and a list is needed"),
        ({**CHAT, "tools": [{"type": "function"}]}, "tools[0]: has no function with a name"),
        ({"messages": [USER, {**CALL, "tool_calls": "f"}]}, "messages[1].tool_calls: is a string"),
        ({"messages": [USER, {**CALL, "tool_calls": ["f"]}]}, "messages[1].tool_calls[0]: has no function"),
        ({"messages": [USER, {"role": "assistant", "content": "\ud83d"}]}, "has \\ud83d, half of a surrogate pair"),
        (PAIR, "line 3: has a preferred and a non-preferred output, but the first row ends with"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_is_named_by_its_line(row: Any, sentence: str) -> None:
    with pytest.raises(InvalidRows) as error:
        check_rows(lines(CHAT, CHAT, row, CHAT))

    [problem] = error.value.problems
    assert (problem.pointer, problem.code) == ("/file", "invalid_training_file")
    assert problem.detail.startswith("line 3: ")
    assert sentence in problem.detail


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({**PAIR, "preferred_output": [{**ANSWER, "weight": 0}]}, "preferred_output[0].weight: is not supported"),
        ({**PAIR, "preferred_output": [USER]}, "preferred_output: has a message from user"),
        ({**PAIR, "input": "2 + 2?"}, "input: is a string"),
        ({**PAIR, "input": {"messages": [USER, SYSTEM]}}, "input.messages[1]: a system message must come first"),
    ],
)
def test_a_preference_pair_with_an_answer_that_is_not_the_assistants_is_refused(row: Any, sentence: str) -> None:
    with pytest.raises(InvalidRows, match=r"line 2") as error:
        check_rows(lines(PAIR, row))

    assert sentence in error.value.problems[0].detail


def test_one_broken_line_among_many_is_named_by_its_number() -> None:
    good = json.dumps(CHAT).encode() + b"\n"
    file = io.BytesIO(good * 15_000 + b"\n" + b'{"messages": [\n' + good)

    with pytest.raises(InvalidRows, match=r"line 15,002: is not JSON"):
        check_rows(file)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"\n\n", "no rows"), (b"\x1f\x8b\x08", "is compressed"), (b'{"a": "\xff"}\n', "line 1: is not UTF-8")],
)
def test_a_file_without_readable_rows_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(InvalidRows, match=sentence):
        check_rows(io.BytesIO(content))


def test_a_large_line_is_parsed_in_another_process_with_the_same_result() -> None:
    many = ",".join(f'"{number}": {{}}' for number in range(200_000))
    good = json.dumps(CHAT).encode() + b"\n"
    large = good * (CHECKED_HERE_BYTES // len(good) + 1)
    bad = io.BytesIO(large + f'{{"messages": [{{{many}}}]}}\n'.encode())

    assert check_upload(io.BytesIO(large)) == check_rows(io.BytesIO(large))
    began = time.thread_time()
    with pytest.raises(InvalidRows) as error:
        check_upload(bad)
    sent_at = time.thread_time()
    with pytest.raises(InvalidRows) as expected:
        check_rows(io.BytesIO(bad.getvalue()))
    parsed = time.thread_time() - sent_at

    assert error.value.problems == expected.value.problems
    assert sent_at - began < parsed / 3, "parsing must be fast, because the process answers no request meanwhile"
