"""Checks files for fine-tuning line by line, so that an upload with a wrong line is refused with the line's number.

    chat          {"messages": […, {"role": "assistant", …}], "tools": […]}                      supervised
    completions   {"prompt": "…", "completion": "…"}                                             supervised
    preference    {"input": {"messages": […]}, "preferred_output": […], "non_preferred_output": […]}    dpo
    prompts       {"messages": […, {"role": "user", …}], and any columns for the grader}         reinforcement

The first line decides the format, and all other lines must have the same. A file of more than 64 KiB is checked by a
process of its own:

    python -I -m service.api.openai.rows < ROWS
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any, Literal

from footplate.contract.conversations import learned, text_of
from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.explain import kind_of
from service.check_rows import limit_process
from service.jobs.file_kinds import PACKED

Format = Literal["chat", "completions", "preference", "prompts"]
Row = dict[str, Any]

LONGEST_LINE = 16 * 1024 * 1024
CHECKED_HERE_BYTES = 64 * 1024
"""The largest file that is checked in the API process. While json parses a line, no request is answered. A line of
this length takes 2 ms, and one of 16 MiB almost a second."""
CHECK_SECONDS = 300
"""The CPU time after which the kernel kills the process that checks a larger file. 100 MB take about 3 s."""
ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_CHAT_KEYS = frozenset({"messages", "tools", "parallel_tool_calls"})


class InvalidRows(InvalidSpec):
    code = "invalid_file"
    title = "A line of the file cannot be used"


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """The result of a check in which every line was good."""

    format: Format
    count: int


class _Wrong(Exception):
    """The reason for which a line cannot be used, and what would work."""


def check_upload(file: IO[bytes], parameter: str = "file") -> CheckedRows:
    """Returns the format of a file and the number of its rows. Raises InvalidRows, which names the first wrong line."""
    if file.seek(0, 2) <= CHECKED_HERE_BYTES:
        file.seek(0)
        return check_rows(file, parameter)
    file.seek(0)
    command = [sys.executable, "-I", "-m", "service.api.openai.rows"]
    # The check gets no environment variables, because they contain keys.
    with subprocess.Popen(command, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as check:
        assert check.stdin is not None
        assert check.stdout is not None
        # The check stops reading at a wrong line, and then writing to its pipe fails.
        with suppress(BrokenPipeError), check.stdin as pipe:
            shutil.copyfileobj(file, pipe, 1024 * 1024)
        answer = check.stdout.read()
    if check.returncode:
        detail = f"the check of the file's rows failed with exit status {check.returncode}: upload it in several files"
        raise _refused(parameter, detail)
    result = json.loads(answer)
    if "problem" in result:
        raise _refused(parameter, result["problem"])
    return CheckedRows(**result)


def check_rows(file: IO[bytes], parameter: str = "file") -> CheckedRows:
    """Does the same as `check_upload`, in this process. The file is read once, from its beginning."""
    first_format: Format | None = None
    count = 0
    for number, line in _lines(file):
        if number == 1 and line.startswith(PACKED):
            raise _refused(parameter, "the file is compressed: decompress it first")
        try:
            row = _object(line)
            row_format = _format_of(row)
            _CHECKS[row_format](row)
            if first_format not in (None, row_format):
                raise _Wrong(
                    f"{_NAMES[row_format]}, but the first row {_NAMES[first_format]}: all rows need the same format"
                )
        except _Wrong as error:
            raise _refused(parameter, f"line {number:,}: {error}") from None
        first_format, count = row_format, count + 1
    if first_format is None:
        raise _refused(parameter, "the file has no rows")
    return CheckedRows(first_format, count)


_CHECKED: dict[str, CheckedRows] = {}
"""The results of earlier checks by the sha256 of the content, which never changes."""
MOST_REMEMBERED = 1000


def remember(sha256: str, rows: CheckedRows) -> None:
    if len(_CHECKED) >= MOST_REMEMBERED:
        _CHECKED.clear()
    _CHECKED[sha256] = rows


def checked_once(sha256: str, open_content: Callable[[], IO[bytes]], parameter: str) -> CheckedRows:
    """Checks a stored file as `check_upload` does, unless this process has checked the same content before."""
    # Another thread may clear the results meanwhile.
    rows = _CHECKED.get(sha256)
    if rows is None:
        with open_content() as file:
            rows = check_upload(file, parameter)
        remember(sha256, rows)
    return rows


def _refused(parameter: str, detail: str) -> InvalidRows:
    return InvalidRows([Problem(f"/{parameter}", "invalid_training_file", detail)])


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields each line that is not empty, with its number from 1.

    The caller must stop at a line that is longer than LONGEST_LINE, because only its beginning is yielded.
    """
    number = 0
    partial_line = b""
    while piece := file.read(1024 * 1024):
        *lines, partial_line = (partial_line + piece).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield number, line
        if len(partial_line) > LONGEST_LINE:
            yield number + 1, partial_line
    if partial_line.strip():
        yield number + 1, partial_line


def _object(line: bytes) -> Row:
    if len(line) > LONGEST_LINE:
        raise _Wrong(f"is longer than {LONGEST_LINE // 1024**2} MiB")
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _Wrong(f"is not UTF-8: byte {error.start} is 0x{line[error.start]:02x}") from error
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"is not JSON: {str(error)[:120]}") from error
    if not isinstance(row, dict):
        raise _Wrong(f"is {kind_of(row)}, and an object is needed")
    if b"\\ud" in line.lower():
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            surrogate = f"\\u{ord(error.object[error.start]):04x}"
            raise _Wrong(
                f"has {surrogate}, half of a surrogate pair, which is not a character and has no tokens"
            ) from error
    return row


def _format_of(row: Row) -> Format:
    if "messages" in row:
        messages = row["messages"]
        last_message = messages[-1] if isinstance(messages, list) and messages else None
        # Any other role, also a wrong one, counts as a chat here. The check of chats then reports a wrong role.
        return "prompts" if isinstance(last_message, dict) and last_message.get("role") in ("user", "tool") else "chat"
    if "preferred_output" in row or "non_preferred_output" in row:
        return "preference"
    if "prompt" in row or "completion" in row:
        return "completions"
    fields = "messages; input, preferred_output and non_preferred_output; or prompt and completion"
    names = ", ".join(name[:40] for name in list(row)[:10]) or "no field"
    raise _Wrong(f"does not have the fields of any format: it has {names}, and needs {fields}")


def _check_chat(row: Row) -> None:
    _only(row, _CHAT_KEYS)
    _check_functions(row, "tools")
    _check_messages(row["messages"], "messages", allowed_keys=MESSAGE_KEYS | {"weight"})
    if row["messages"][-1]["role"] != "assistant":
        raise _Wrong("messages: the last message must be from the assistant")
    try:
        learned(row["messages"])
    except ValueError as error:
        raise _Wrong(f"messages{error}") from None


def _check_completions(row: Row) -> None:
    _only(row, frozenset({"prompt", "completion"}))
    for name in ("prompt", "completion"):
        if not isinstance(row.get(name), str):
            raise _Wrong(f"{name}: {_is(row, name)}, and a string is needed")


def _check_preference(row: Row) -> None:
    _only(row, frozenset({"input", "preferred_output", "non_preferred_output"}))
    question = row.get("input")
    if not isinstance(question, dict):
        raise _Wrong(f"input: {_is(row, 'input')}, and an object with messages is needed")
    _only(question, _CHAT_KEYS, "input.")
    _check_functions(question, "tools", "input.")
    _check_messages(question.get("messages"), "input.messages")
    for name in ("preferred_output", "non_preferred_output"):
        _check_messages(row.get(name), name, is_answer=True)
        if wrong_roles := [message["role"] for message in row[name] if message["role"] != "assistant"]:
            raise _Wrong(
                f"{name}: has a message from {wrong_roles[0]}, and all its messages must be from the assistant"
            )


def _check_messages(
    messages: object, where: str, *, is_answer: bool = False, allowed_keys: frozenset[str] = MESSAGE_KEYS
) -> None:
    """Raises _Wrong for a message that cannot be used, or whose role is not possible at its place.

    The messages of an answer follow one of the user.
    """
    if not isinstance(messages, list) or not messages:
        raise _Wrong(f"{where}: must be a list with at least one message")
    previous_role: str | None = "user" if is_answer else None
    has_calls = False
    for index, message in enumerate(messages):
        place = f"{where}[{index}]"
        if not isinstance(message, dict):
            raise _Wrong(f"{place}: is {kind_of(message)}, and an object is needed")
        # The message of an answer, as the SDK writes it, has `"refusal": null` and the like.
        _only({name: value for name, value in message.items() if value is not None}, allowed_keys, f"{place}.")
        role = message.get("role")
        if role not in ROLES:
            raise _Wrong(f"{place}.role: is {str(role)[:40]!r}, and must be one of {', '.join(ROLES)}")
        if role in ("system", "developer") and previous_role not in (None, "system", "developer"):
            raise _Wrong(f"{place}: a {role} message must come first, and this one follows {previous_role}")
        if role == "tool" and not has_calls:
            raise _Wrong(
                f"{place}: a tool message must follow an assistant's tool_calls, and this one follows {previous_role}"
            )
        _check_functions(message, "tool_calls", f"{place}.")
        calls = message.get("tool_calls")
        try:
            content = text_of(message.get("content"))
        except ValueError as error:
            raise _Wrong(f"{place}.content: {error}") from None
        if not (isinstance(content, str) or (content is None and role == "assistant" and calls)):
            raise _Wrong(f"{place}.content: {_is(message, 'content')}, and text is needed")
        has_calls = bool(calls) if role == "assistant" else has_calls and role == "tool"
        previous_role = role


def _check_functions(value: Row, name: str, where: str = "") -> None:
    """Raises _Wrong for tools, or calls of tools, whose functions a chat template cannot write."""
    functions = value.get(name)
    if functions is None:
        return
    if not isinstance(functions, list):
        raise _Wrong(f"{where}{name}: {_is(value, name)}, and a list is needed")
    for index, item in enumerate(functions):
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            form = '{"type": "function", "function": {"name": …}}'
            raise _Wrong(f"{where}{name}[{index}]: has no function with a name; the form is {form}")


def _only(value: Row, field_names: frozenset[str], where: str = "") -> None:
    if not value.keys() <= field_names:
        name = next(name for name in value if name not in field_names)
        raise _Wrong(f"{where}{name[:60]}: is not supported here; known: {', '.join(sorted(field_names))}")


def _is(row: Row, name: str) -> str:
    return f"is {kind_of(row[name])}" if name in row else "is missing"


_CHECKS: dict[Format, Callable[[Row], None]] = {
    "chat": _check_chat,
    "prompts": lambda row: _check_messages(row["messages"], "messages"),
    "completions": _check_completions,
    "preference": _check_preference,
}
_NAMES: dict[Format | None, str] = {
    "chat": "ends with a message from the assistant",
    "prompts": "ends with a message from the user",
    "completions": "has a prompt and a completion",
    "preference": "has a preferred and a non-preferred output",
}


def main() -> None:
    """Checks the rows on stdin, and prints the result as JSON."""
    limit_process(CHECK_SECONDS)
    try:
        result: dict[str, Any] = asdict(check_rows(sys.stdin.buffer))
    except InvalidRows as invalid:
        result = {"problem": invalid.problems[0].detail}
    except MemoryError:
        result = {"problem": "a line of the file needs more memory than its check may use: make that line shorter"}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
