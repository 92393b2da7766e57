"""Parses the JSON of request bodies more strictly than `json.loads`. A single error reports all problems.

`json.loads` accepts duplicate keys, NaN, infinities, NUL, lone surrogates, numbers beyond 64 bits and any depth. Each
of these would break something much later, such as a database, a browser or a comparison.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import isinf
from typing import Any, NoReturn

from footplate.contract.errors import InvalidSpec, Problem

MAX_DEPTH = 32
"""The deepest nesting of objects and lists. The body itself is the first level."""
MAX_INTEGER = 2**63 - 1
"""The largest integer of SQL, JavaScript's BigInt64 and numpy."""
MAX_PROBLEMS = 100
"""The most problems in one answer, because a body can be nothing but mistakes."""


MAX_VALUES = 10_000
"""The most values in one body, without keys. pydantic takes 30 ms to report as many wrong values, and holds the GIL
meanwhile."""
MAX_KEY = 500
"""The longest key in characters, because every problem below a key repeats it."""
SMALL_BYTES = 2048
"""The values of bodies up to this size are not counted, because these are cheap to check. Most specs are smaller."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_A_STRING = re.compile(rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?')


def read_json(raw: bytes) -> object:
    """Parses a body. Raises InvalidSpec with every problem."""
    if len(raw) > SMALL_BYTES and has_more_values_than(MAX_VALUES, raw):
        _refuse(f"has more than {MAX_VALUES:,} values", code="too_long", hint="put data into files")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        place = _place(raw[: error.start].decode(), error.start)
        _refuse(f"not UTF-8 at {place}: byte 0x{raw[error.start]:02x}", hint="send JSON encoded as UTF-8")
    problems: list[Problem] = []
    try:
        value = _plain(_DECODER.decode(text), (), problems)
    except json.JSONDecodeError as error:
        if not text.strip():
            _refuse("the body is empty", hint="send a JSON object")
        place = f"line {error.lineno}, column {error.colno}"
        _refuse(f"not JSON at {place}: {error.msg}", hint=_json_instead(text, error.pos))
    except RecursionError:
        _refuse(f"nested more than {MAX_DEPTH} levels deep", code="too_deep")
    if problems:
        raise InvalidSpec(problems[:MAX_PROBLEMS])
    return value


def has_more_values_than(limit: int, raw: bytes) -> bool:
    """Returns True if the JSON text has more than `limit` values, without parsing the text.

    Values are counted by the brackets and commas outside of strings.
    """
    if _openings(raw, 0, len(raw)) < limit:
        return False
    count, end = 1, 0
    for text in _A_STRING.finditer(raw):
        # Two adjacent strings are not JSON. They are counted as well, so that the search in such a text ends early.
        count += _openings(raw, end, text.start()) + (end == text.start())
        end = text.end()
        if count > limit:
            return True
    return count + _openings(raw, end, len(raw)) > limit


def _openings(raw: bytes, start: int, end: int) -> int:
    return raw.count(b",", start, end) + raw.count(b"[", start, end) + raw.count(b"{", start, end)


def pointer_to(*path: str | int) -> str:
    """Returns an RFC 6901 pointer: `pointer_to("data", "a/b", 0)` is `/data/a~1b/0`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def keys_of(pointer: str) -> list[str]:
    """Returns the keys and indexes in a pointer: `keys_of("/data/a~1b/0")` is `["data", "a/b", "0"]`."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def is_nested(pointer: str, other_pointer: str) -> bool:
    """Returns True if two pointers name the same value, or if one value contains the other."""
    return f"{pointer}/".startswith(f"{other_pointer}/") or f"{other_pointer}/".startswith(f"{pointer}/")


def _refuse(detail: str, *, code: str = "invalid_json", hint: str | None = None) -> NoReturn:
    raise InvalidSpec([Problem("", code, detail, hint)])


def _json_instead(text: str, at: int) -> str:
    """Returns advice for the character at which parsing failed, such as "JSON needs double quotes"."""
    following_text, preceding_text = text[at : at + 8], text[max(0, at - 80) : at].rstrip()
    if text.startswith("\ufeff"):
        return "save the file as UTF-8 without a byte order mark"
    if following_text.startswith("'"):
        return "JSON needs double quotes"
    if following_text.startswith(("//", "/*", "#")):
        return "JSON has no comments: leave them out"
    if following_text.startswith(",") or (following_text.startswith(("}", "]")) and preceding_text.endswith(",")):
        return "remove the comma before the bracket"
    for python, in_json in (("True", "true"), ("False", "false"), ("None", "null")):
        if following_text.startswith(python):
            return f"write {in_json}"
    if not text.lstrip().startswith(("{", "[")):
        return (
            'for example {"model": "toy/mlp", "data": "toy/regression"}. The command footplate submit reads YAML, too'
        )
    return "compare the quotes, commas and brackets before this place"


def _place(preceding_text: str, offset: int) -> str:
    *lines, line = preceding_text.split("\n")
    return f"line {len(lines) + 1}, column {len(line) + 1} (byte {offset})"


class _Pairs(list[tuple[str, Any]]):
    """The pairs of an object as written, with duplicate keys."""


@dataclass(frozen=True, slots=True)
class _Wrong:
    """Stands for a number that is not allowed, until `_plain` finds its path."""

    code: str
    detail: str
    hint: str | None = None


def _float(text: str) -> float | _Wrong:
    value = float(text)
    return _Wrong("number_too_large", f"{_short(text)} is more than a 64-bit float can hold") if isinf(value) else value


def _integer(text: str) -> int | _Wrong:
    # The length is compared first, because int() of thousands of digits is itself an attack.
    if len(text.lstrip("-")) > 19 or not -MAX_INTEGER - 1 <= int(text) <= MAX_INTEGER:
        return _Wrong("number_too_large", f"{_short(text)} does not fit into a 64-bit integer")
    return int(text)


def _constant(text: str) -> _Wrong:
    return _Wrong("not_finite", f"{text} is not a number in JSON", "write a number, or leave the field out")


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs, parse_float=_float, parse_int=_integer, parse_constant=_constant)


def _plain(value: Any, path: tuple[str | int, ...], problems: list[Problem]) -> Any:
    """Converts a decoded value to plain JSON, and adds the problem of each invalid value to `problems`."""
    if isinstance(value, _Wrong):
        problems.append(Problem(pointer_to(*path), value.code, value.detail, value.hint))
        return None
    if isinstance(value, str):
        problems.extend(_string_problems(value, path))
        return value
    if not isinstance(value, list):
        return value
    if len(path) >= MAX_DEPTH:
        problems.append(Problem(pointer_to(*path), "too_deep", f"nested more than {MAX_DEPTH} levels deep"))
        return None
    if isinstance(value, _Pairs):
        return _plain_object(value, path, problems)
    return [_plain(item, (*path, index), problems) for index, item in enumerate(value)]


def _plain_object(pairs: _Pairs, path: tuple[str | int, ...], problems: list[Problem]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, item in pairs:
        key_problems = _string_problems(key, path, is_key=True)
        problems.extend(key_problems)
        # An invalid key cannot be part of a pointer, so problems in its value get the pointer of the object.
        item_path = path if key_problems else (*path, key)
        if key in values:
            detail, hint = "the object has this key more than once", "keep one of them"
            problems.append(Problem(pointer_to(*item_path), "duplicate_key", detail, hint))
        values[key] = _plain(item, item_path, problems)
    return values


def _string_problems(text: str, path: tuple[str | int, ...], *, is_key: bool = False) -> list[Problem]:
    has_nul, is_long = "\0" in text, is_key and len(text) > MAX_KEY
    has_surrogate = not text.isascii() and _SURROGATE.search(text) is not None
    if not (has_nul or has_surrogate or is_long):
        return []
    pointer, subject = pointer_to(*path), f"the key {_short(ascii(text[:MAX_KEY]))}" if is_key else "the string"
    problems: list[Problem] = []
    if has_nul:
        problems.append(Problem(pointer, "nul", f"{subject} contains a NUL character"))
    if has_surrogate:
        problems.append(Problem(pointer, "lone_surrogate", f"{subject} contains half of a surrogate pair"))
    if is_long:
        problems.append(Problem(pointer, "too_long", f"{subject} has more than {MAX_KEY} characters"))
    return problems


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
