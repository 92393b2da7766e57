"""Checks arguments of components by the part of JSON Schema that they use. Not a general validator.

Supported: type (one or several), anyOf/oneOf, enum, const, minimum, maximum, exclusiveMinimum, exclusiveMaximum,
minLength, maxLength, items, minItems, maxItems, properties, required, additionalProperties, and $ref into $defs.
Other keywords are ignored, because the component's own code checks its arguments again when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from footplate.contract.body import MAX_PROBLEMS, pointer_to
from footplate.contract.errors import Problem, did_you_mean
from footplate.contract.explain import kind_of

Schema = dict[str, Any]

NAMES = {
    "string": "a string", "integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null",
    "array": "a list", "object": "an object",
}  # fmt: skip


def violations(schema: Schema, value: object, pointer: str = "") -> list[Problem]:
    """Returns a problem for everything that the schema does not allow, at most MAX_PROBLEMS."""
    return list(islice(_violations(schema, value, pointer, schema.get("$defs", {})), MAX_PROBLEMS))


def _violations(schema: Schema, value: Any, pointer: str, definitions: Schema) -> Iterator[Problem]:
    schema = _resolved(schema, definitions)
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        yield from _any_of(branches, value, pointer, definitions)
    types = _types(schema)
    if types and not any(_is(value, name) for name in types):
        yield _wrong_type(types, value, pointer)
        return
    if "enum" in schema or "const" in schema:
        yield from _choice(schema.get("enum", [schema.get("const")]), value, pointer)
    if isinstance(value, dict):
        yield from _object(schema, value, pointer, definitions)
    elif isinstance(value, list):
        yield from _limits(schema, len(value), pointer, "minItems", "maxItems", "entries")
        for index, item in enumerate(value if "items" in schema else ()):
            yield from _violations(schema["items"], item, f"{pointer}/{index}", definitions)
    elif isinstance(value, str):
        yield from _limits(schema, len(value), pointer, "minLength", "maxLength", "characters")
    elif _is(value, "number"):
        yield from _range(schema, value, pointer)


def _types(schema: Schema) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else types


def _is(value: object, name: str) -> bool:
    """Returns True if the value has the type.

    `true` is not a number, and 5.0 is an integer, as JSON has one number type.
    """
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    kinds: dict[str, Any] = {"string": str, "number": (int, float), "array": (list, tuple), "object": dict}
    return name in kinds and isinstance(value, kinds[name])


def _wrong_type(types: list[str], value: object, pointer: str) -> Problem:
    needed = " or ".join(dict.fromkeys(NAMES.get(name, name) for name in types))
    return Problem(pointer, "wrong_type", f"is {kind_of(value)}, {needed} is needed", expected=(needed,))


def _any_of(branches: list[Schema], value: object, pointer: str, definitions: Schema) -> Iterator[Problem]:
    """Yields nothing if the value fits a branch. Otherwise yields the problems of the branch with the fewest problems.

    If the value has the wrong type for every branch, yields one problem that lists all types.
    """
    problems_of_branches = [
        list(islice(_violations(branch, value, pointer, definitions), MAX_PROBLEMS)) for branch in branches
    ]
    if not all(problems_of_branches):
        return
    closest_branches = [
        problems
        for problems in problems_of_branches
        if any(problem.code != "wrong_type" or problem.pointer != pointer for problem in problems)
    ]
    if closest_branches:
        yield from min(closest_branches, key=len)
    else:
        yield _wrong_type(
            [name for branch in branches for name in _types(_resolved(branch, definitions))], value, pointer
        )


def _resolved(schema: Schema, definitions: Schema) -> Schema:
    return {**definitions.get(schema["$ref"].rpartition("/")[2], {}), **schema} if "$ref" in schema else schema


def _choice(choices: list[Any], value: object, pointer: str) -> Iterator[Problem]:
    # 1 == True in Python, but not in JSON.
    if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices):
        texts = [str(choice) for choice in choices]
        hint = did_you_mean(value[:80], texts) if isinstance(value, str) else None
        suffix = f", and {len(texts) - MOST_CHOICES:,} more" if len(texts) > MOST_CHOICES else ""
        yield Problem(pointer, "unknown_choice", f"must be one of {', '.join(texts[:MOST_CHOICES])}{suffix}", hint)


MOST_CHOICES = 200
"""The most choices that a problem lists. Tasks of lm-evaluation-harness have 14,000 names."""

_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", lambda value, bound: value >= bound),
    "maximum": ("at most", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("more than", lambda value, bound: value > bound),
    "exclusiveMaximum": ("less than", lambda value, bound: value < bound),
}


def _range(schema: Schema, value: float, pointer: str) -> Iterator[Problem]:
    for keyword, (words, is_within) in _BOUNDS.items():
        if keyword in schema and not is_within(value, schema[keyword]):
            yield Problem(pointer, "out_of_range", f"must be {words} {schema[keyword]}")


def _limits(schema: Schema, size: int, pointer: str, least: str, most: str, unit: str) -> Iterator[Problem]:
    if size < schema.get(least, 0):
        yield Problem(pointer, "too_short", f"must have at least {schema[least]} {unit}")
    if size > schema.get(most, size):
        yield Problem(pointer, "too_long", f"must have at most {schema[most]} {unit}")


def _object(schema: Schema, value: dict[str, Any], pointer: str, definitions: Schema) -> Iterator[Problem]:
    properties: dict[str, Schema] = schema.get("properties", {})
    additional = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem(pointer + pointer_to(name), "missing", "this argument is required")
    for name, item in value.items():
        item_pointer = pointer + pointer_to(name)
        if name in properties:
            yield from _violations(properties[name], item, item_pointer, definitions)
        elif additional is False:
            names = f"; there is: {', '.join(properties)}" if properties else "; there are none"
            detail = f"no argument is named {name[:80]!r}{names}"
            yield Problem(
                item_pointer, "unknown_argument", detail, did_you_mean(name[:80], properties), tuple(properties)
            )
        elif isinstance(additional, dict):
            yield from _violations(additional, item, item_pointer, definitions)
