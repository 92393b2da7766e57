"""Tests the part of JSON Schema that components use: it accepts and refuses what pydantic does."""

import enum
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from footplate.contract.json_schema import violations


def pointers_and_codes(schema, value):
    return [(violation.pointer, violation.code) for violation in violations(schema, value)]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, 5.0, 10**30], [True, 1.5, "1", None]),
        ({"type": "number"}, [1, 1.5], [True, "1"]),
        ({"type": "boolean"}, [True, False], [0, 1, "true", None]),
        ({"type": "string"}, ["", "x"], [1, None, []]),
        ({"type": "null"}, [None], [0, "", False]),
        ({"type": ["string", "null"]}, ["x", None], [1]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["x", True]),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
            [["a"]],
            [[], ["a"] * 3, [1], "a"],
        ),
        ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", True, 2]),
        ({"const": "a"}, ["a"], ["b"]),
        ({"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5], [-1, 2]),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.5], [0, 1]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab"], ["a", "abcd"]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"a": 1}], [{"a": "x"}, []]),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}, ["x"], [1]),
        ({}, [1, "x", None, []], []),
    ],
)
def test_a_schema_accepts_valid_values_and_rejects_invalid_values(schema, good, bad):
    assert [value for value in good if violations(schema, value)] == []
    assert [value for value in bad if not violations(schema, value)] == []


def test_a_value_that_fits_no_branch_gets_the_error_of_the_nearest_branch():
    schema = {"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "string"}]}
    assert pointers_and_codes(schema, {"a": "x"}) == [("/a", "wrong_type")]
    (problem,) = violations(schema, 5)
    assert problem.code == "wrong_type"
    assert all(name in problem.detail for name in ("number", "object", "string"))


def test_a_property_name_with_a_slash_is_escaped_in_the_pointer():
    assert pointers_and_codes({"type": "object", "additionalProperties": False}, {"a/b": 1}) == [
        ("/a~1b", "unknown_argument")
    ]


class Colour(enum.StrEnum):
    RED = "red"


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    size: Annotated[int, Field(gt=0, le=9)] = 1


class Args(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    count: Annotated[int, Field(ge=0)]
    rate: float | None = None
    kind: Literal["a", "b"] = "a"
    colour: Annotated[Colour, Field(strict=False)] = Colour.RED
    inner: Inner = Inner()
    names: list[str] = Field(default_factory=list, max_length=2)
    extra: dict[str, bool] = Field(default_factory=dict)


ANY = st.none() | st.booleans() | st.integers(-3, 12) | st.just(0.5) | st.sampled_from(["a", "red", "x"])
ANYTHING = ANY | st.lists(ANY, max_size=3) | st.dictionaries(st.sampled_from(["size", "a"]), ANY, max_size=2)


@given(st.dictionaries(st.sampled_from([*Args.model_fields, "other"]), ANYTHING, max_size=7))
def test_our_schema_check_rejects_the_same_arguments_as_pydantic(args):
    try:
        Args.model_validate(args)
        theirs = set()
    except ValidationError as error:
        theirs = {str(item["loc"][0]) for item in error.errors()}
    assert {violation.pointer.split("/")[1] for violation in violations(Args.model_json_schema(), args)} == theirs
