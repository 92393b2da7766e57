"""The one reader of JSON bodies: what JSON allows and we do not is refused with a pointer, everything at once.

Twice the same key, NaN and infinities, NUL, lone surrogates, numbers that lose themselves and bottomless nesting are
all taken by `json.loads` without a word, and break something much later: a database, a browser, a comparison.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from typing import Any, NoReturn

from footplate.contract.errors import InvalidSpec, Problem

MAX_DEPTH = 32
"""Objects and lists inside each other. The body itself is the first."""
MAX_INTEGER = 2**63 - 1
"""SQL, JavaScript's BigInt64 and numpy end here."""
MAX_PROBLEMS = 100
"""A body can be nothing but mistakes; the answer need not be longer than it helps."""


MAX_VALUES = 10_000
"""Values in one body, keys not counted. pydantic takes 30 ms to report as many wrong values, and holds the interpreter
meanwhile, in whatever thread it runs."""
MAX_KEY = 500
"""Characters of a key: every problem below it repeats them."""
SMALL_BYTES = 2048
"""No body of this size is expensive, and most specs are smaller."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_A_STRING = re.compile(rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?')


def read_json(raw: bytes) -> object:
    """What a body says; InvalidSpec with every problem when it says it badly."""
    if len(raw) > SMALL_BYTES and has_more_values_than(MAX_VALUES, raw):
        _refuse(f"has more than {MAX_VALUES:,} values", code="too_long", hint="put data into files")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        place = _place(raw[: error.start].decode(), error.start)
        _refuse(f"not UTF-8 at {place}: byte 0x{raw[error.start]:02x}", hint="send JSON encoded as UTF-8")
    # Escapes are the only way in for these: a raw NUL is no JSON, a raw surrogate is no UTF-8.
    suspicious = "\\u0000" in text or "\\ud" in text or "\\uD" in text
    try:
        if not suspicious:
            value = _parse_clean(text)
            if text.count("{") + text.count("[") <= MAX_DEPTH or _depth(value) <= MAX_DEPTH:
                return value
        value, problems = _parse_marked(text)
    except json.JSONDecodeError as error:
        if not text.strip():
            _refuse("the body is empty", hint="send a JSON object")
        _refuse(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}")
    except RecursionError:
        _refuse(f"nested more than {MAX_DEPTH} levels deep", code="too_deep")
    if problems:
        raise InvalidSpec(problems)
    return value


def has_more_values_than(limit: int, raw: bytes) -> bool:
    """Counts the values of JSON text without parsing it: each is the first of a list or object, or follows a comma."""
    if _openings(raw, 0, len(raw)) < limit:
        return False
    count, end = 1, 0
    for text in _A_STRING.finditer(raw):
        # A string costs a turn, so that text which is no JSON at all ends soon, too.
        count += _openings(raw, end, text.start()) + (end == text.start())
        end = text.end()
        if count > limit:
            return True
    return count + _openings(raw, end, len(raw)) > limit


def _openings(raw: bytes, start: int, end: int) -> int:
    return raw.count(b",", start, end) + raw.count(b"[", start, end) + raw.count(b"{", start, end)


def pointer_to(*path: str | int) -> str:
    """An RFC 6901 pointer: `pointer_to("data", "a/b", 0)` is `/data/a~1b/0`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _refuse(detail: str, *, code: str = "invalid_json", hint: str | None = None) -> NoReturn:
    raise InvalidSpec([Problem("", code, detail, hint)])


def _place(before: str, offset: int) -> str:
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))} (byte {offset})"


# The fast path: json's C scanner with hooks that only ask whether all is well. ---------------------------------------


class _Suspicious(Exception):
    """Something is wrong: read again, slowly, and say where."""


def _clean_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs) or max(map(len, value), default=0) > MAX_KEY:
        raise _Suspicious
    return value


def _clean_float(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise _Suspicious
    return value


def _clean_int(text: str) -> int:
    if len(text) > 18:
        raise _Suspicious
    return int(text)


def _clean_constant(text: str) -> NoReturn:
    raise _Suspicious


_CLEAN = json.JSONDecoder(
    object_pairs_hook=_clean_object,
    parse_float=_clean_float,
    parse_int=_clean_int,
    parse_constant=_clean_constant,
)


def _parse_clean(text: str) -> Any:
    try:
        return _CLEAN.decode(text)
    except _Suspicious:
        value, problems = _parse_marked(text)
    if problems:
        raise InvalidSpec(problems)
    return value


def _depth(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(_depth, children), default=0)


# The slow path: keep what is wrong as a mark in the value, then walk it once with the path in hand. ------------------


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written, before its keys swallow each other."""


@dataclass(frozen=True, slots=True)
class _Wrong:
    code: str
    detail: str


def _marked_float(text: str) -> float | _Wrong:
    value = float(text)
    return _Wrong("number_too_large", f"{_short(text)} is more than a 64-bit float can hold") if isinf(value) else value


def _marked_int(text: str) -> int | _Wrong:
    # Compared by length first: int() of thousands of digits is itself an attack.
    if len(text.lstrip("-")) > 19 or not -MAX_INTEGER - 1 <= int(text) <= MAX_INTEGER:
        return _Wrong("number_too_large", f"{_short(text)} does not fit into a 64-bit integer")
    return int(text)


def _marked_constant(text: str) -> _Wrong:
    return _Wrong("not_finite", f"{text} is no number that JSON knows")


_MARKED = json.JSONDecoder(
    object_pairs_hook=_Pairs,
    parse_float=_marked_float,
    parse_int=_marked_int,
    parse_constant=_marked_constant,
)


def _parse_marked(text: str) -> tuple[Any, list[Problem]]:
    problems: list[Problem] = []
    value = _unmark(_MARKED.decode(text), (), problems)
    return value, problems[:MAX_PROBLEMS]


def _unmark(value: Any, path: tuple[str | int, ...], problems: list[Problem]) -> Any:
    """The plain value, and on the way every problem below it."""
    if isinstance(value, _Wrong):
        problems.append(Problem(pointer_to(*path), value.code, value.detail))
        return None
    if isinstance(value, str):
        problems.extend(_string_problems(value, path, "the string"))
        return value
    if not isinstance(value, list):
        return value
    if len(path) >= MAX_DEPTH:
        problems.append(Problem(pointer_to(*path), "too_deep", f"nested more than {MAX_DEPTH} levels deep"))
        return None
    if isinstance(value, _Pairs):
        return _unmark_object(value, path, problems)
    return [_unmark(item, (*path, index), problems) for index, item in enumerate(value)]


def _unmark_object(pairs: _Pairs, path: tuple[str | int, ...], problems: list[Problem]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in pairs:
        name = f"the key {_short(ascii(key[:MAX_KEY]))}"
        wrong_key = list(_string_problems(key, path, name))
        if len(key) > MAX_KEY:
            wrong_key.append(Problem(pointer_to(*path), "too_long", f"{name} has more than {MAX_KEY} characters"))
        problems.extend(wrong_key)
        # A key that cannot be written cannot be pointed through either: what is below it is said of its object.
        here = path if wrong_key else (*path, key)
        if key in plain:
            problems.append(Problem(pointer_to(*here), "duplicate_key", "this key is there more than once"))
        plain[key] = _unmark(item, here, problems)
    return plain


def _string_problems(text: str, path: tuple[str | int, ...], what: str) -> Iterator[Problem]:
    if "\0" in text:
        yield Problem(pointer_to(*path), "nul", f"{what} contains a NUL character")
    if _SURROGATE.search(text):
        yield Problem(pointer_to(*path), "lone_surrogate", f"{what} contains half of a surrogate pair")


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
