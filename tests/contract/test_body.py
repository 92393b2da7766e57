"""Tests the reader of request bodies, which refuses JSON that json.loads accepts and that would fail later."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from footplate.contract.body import MAX_DEPTH, MAX_KEY, MAX_PROBLEMS, MAX_VALUES, read_json
from footplate.contract.errors import InvalidSpec


def problems_of(raw: bytes) -> list[tuple[str, str]]:
    with pytest.raises(InvalidSpec) as error:
        read_json(raw)
    return [(problem.pointer, problem.code) for problem in error.value.problems]


def detail_of(raw: bytes) -> str:
    with pytest.raises(InvalidSpec) as error:
        read_json(raw)
    return error.value.problems[0].detail


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=40,
)


@given(JSON, st.booleans())
def test_valid_json_is_read_as_json_loads_reads_it(value, ascii_only):
    assert read_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_either_parsed_or_refused_with_problems(raw):
    try:
        read_json(raw)
    except InvalidSpec as invalid:
        problems = invalid.problems
    else:
        return
    assert problems


@pytest.mark.parametrize(
    ("raw", "problems"),
    [
        (b'{"a": 1, "a": 1}', [("/a", "duplicate_key")]),
        (b'{"a": [{"b/c": 1, "b/c": 2}]}', [("/a/0/b~1c", "duplicate_key")]),
        (b'[NaN, {"x~y": -Infinity}]', [("/0", "not_finite"), ("/1/x~0y", "not_finite")]),
        (b'{"a": 1e400, "b": -1e400}', [("/a", "number_too_large"), ("/b", "number_too_large")]),
        (b'{"a": 9223372036854775808}', [("/a", "number_too_large")]),
        (b'{"a": ' + b"9" * 5000 + b"}", [("/a", "number_too_large")]),
        (rb'{"a": "x\u0000y", "b\u0000": 1}', [("/a", "nul"), ("", "nul")]),
        (rb'{"a": ["\ud800"], "b\ud800": 1}', [("/a/0", "lone_surrogate"), ("", "lone_surrogate")]),
        (rb'{"a": "\udc00\ud83d"}', [("/a", "lone_surrogate")]),
        (b"[" * 33 + b"]" * 33, [("/0" * 32, "too_deep")]),
        (b'{"a":' * 33 + b"1" + b"}" * 33, [("/a" * 32, "too_deep")]),
        (b"[" * 9_000 + b"]" * 9_000, [("", "too_deep")]),
        (b"[" * 200_000 + b"]" * 200_000, [("", "too_long")]),
        (b"[" * 9_000, [("", "too_deep")]),
        (b"", [("", "invalid_json")]),
        (b"\xef\xbb\xbf{}", [("", "invalid_json")]),
        (b'{"a": "\x01"}', [("", "invalid_json")]),
        (b"{} {}", [("", "invalid_json")]),
    ],
)  # fmt: skip
def test_json_that_would_fail_later_is_refused_with_a_pointer(raw, problems):
    assert problems_of(raw) == problems


def test_all_problems_of_a_body_are_reported_at_once():
    raw = rb'{"a": NaN, "b": {"c": 1, "c": 2}, "d": "\u0000", "e": 1e999, "f": ["\udfff"]}'
    assert problems_of(raw) == [
        ("/a", "not_finite"),
        ("/b/c", "duplicate_key"),
        ("/d", "nul"),
        ("/e", "number_too_large"),
        ("/f/0", "lone_surrogate"),
    ]


def test_the_number_of_problems_reported_for_one_body_is_limited():
    assert len(problems_of(b"[" + b"NaN," * 5000 + b"1]")) == MAX_PROBLEMS


def test_a_json_syntax_error_is_reported_with_line_and_column():
    assert "line 3, column 8" in detail_of(b'{\n"a": 1,\n  "b": }')


def test_invalid_utf8_is_reported_with_line_and_column():
    detail = detail_of('{\n "é": "'.encode() + b'\xff"}')
    assert all(name in detail for name in ("UTF-8", "line 2, column 8", "0xff"))


def test_the_largest_and_smallest_accepted_numbers_are_kept_exactly():
    assert read_json(b"[9223372036854775807, -9223372036854775808, 1e308]") == [2**63 - 1, -(2**63), 1e308]


def test_the_depth_limit_counts_nesting_and_not_brackets():
    assert read_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert read_json(json.dumps(["[{" * 50] * 50 + [[]] * 100).encode())


def test_a_body_has_a_limit_of_values_that_ignores_commas_in_strings():
    assert problems_of(json.dumps([0] * MAX_VALUES).encode()) == [("", "too_long")]
    assert problems_of(json.dumps({"a": [{"b": "c"}] * (MAX_VALUES // 2)}).encode()) == [("", "too_long")]
    full = ['a,[{"\\', *[0] * (MAX_VALUES - 3), "[" * MAX_VALUES]
    assert read_json(json.dumps(full).encode()) == full


def test_the_pointers_of_problems_do_not_repeat_a_key_that_is_too_long():
    long = "k" * (MAX_KEY + 1)

    assert read_json(json.dumps({long[1:]: 1}).encode())
    assert problems_of(b'{"a": {"%b": NaN}}' % long.encode()) == [("/a", "too_long"), ("/a", "not_finite")]
