"""Turns pydantic's errors about a spec into problems: a pointer, a sentence, and the nearest name that would work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from footplate.contract.body import MAX_PROBLEMS, pointer_to
from footplate.contract.errors import Problem, did_you_mean
from footplate.contract.fields import PATTERNS

Path = tuple[str | int, ...]

BELONGS_AT = "it belongs at"
"""The beginning of the hint for a field that was written in the wrong place."""
NEEDED = {
    "string": "a string", "int": "a whole number", "float": "a number", "finite_number": "a finite number",
    "bool": "true or false", "dict": "an object", "tuple": "a list", "list": "a list", "model": "an object",
    "dataclass": "an object", "enum": "a string",
}  # fmt: skip
BOUNDS = {
    "greater_than": "more than",
    "greater_than_equal": "at least",
    "less_than": "less than",
    "less_than_equal": "at most",
}


def kind_of(value: object) -> str:
    """Returns JSON's name for a value's type. Never the value itself, which may be a misplaced secret."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    for types, name in ((str, "a string"), ((int, float), "a number"), ((list, tuple), "a list"), (dict, "an object")):
        if isinstance(value, types):
            return name
    return f"a {type(value).__name__}"


def explain(
    error: ValidationError,
    *,
    path: Callable[[Path], Path],
    model_at: Callable[[Path], type[BaseModel] | None] = lambda path: None,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Problem]:
    """Yields a problem for each error.

    `path` removes union tags from pydantic's paths. `model_at` returns the model at a path, if there is one.
    `elsewhere` maps names of fields that users often put into the wrong object to the right place, for the hint.
    """
    for detail in error.errors(include_url=False)[:MAX_PROBLEMS]:
        pointer = pointer_to(*path(detail["loc"])).removesuffix("/[key]")
        if detail["type"] == "extra_forbidden":
            name, model = str(detail["loc"][-1]), model_at(detail["loc"][:-1])
            field_names = list(model.model_fields) if model else []
            known_fields = f"; there is: {', '.join(field_names)}" if field_names else ""
            hint = f"{BELONGS_AT} {elsewhere[name]}" if name in elsewhere else did_you_mean(name[:80], field_names)
            text = f"no field is named {name[:80]!r}{known_fields}"
            yield Problem(pointer, "unknown_field", text, hint, tuple(field_names))
        else:
            yield problem(pointer, detail)


def problem(pointer: str, detail: ErrorDetails) -> Problem:
    """Returns one of pydantic's errors as a problem."""
    kind, context, value, message = detail["type"], detail.get("ctx", {}), detail["input"], detail["msg"]
    if kind == "missing":
        return Problem(pointer, "missing", "this field is required")
    if kind in BOUNDS:
        bound = next(iter(context.values()))
        limit = f"{bound:g}" if isinstance(bound, float) else str(bound)
        return Problem(pointer, "out_of_range", f"must be {BOUNDS[kind]} {limit}")
    if kind in ("string_too_long", "too_long"):
        unit = "characters" if kind == "string_too_long" else "entries"
        return Problem(pointer, "too_long", f"must have at most {context['max_length']} {unit}")
    if kind in ("string_too_short", "too_short"):
        least, unit = context["min_length"], "characters" if kind == "string_too_short" else "entries"
        return Problem(pointer, "too_short", "is empty" if least == 1 else f"must have at least {least} {unit}")
    if kind == "int_parsing":
        return Problem(pointer, "wrong_type", "must be a whole number")
    if kind == "string_pattern_mismatch":
        return Problem(pointer, "not_well_formed", PATTERNS.get(context["pattern"], message))
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        return _no_choice(pointer, str(context.get("expected") or context["expected_tags"]), context, value)
    if kind == "union_tag_not_found":
        return Problem(
            pointer, "missing", f"needs the field {context['discriminator']}, which says what kind of object this is"
        )
    needed = NEEDED.get(kind.removesuffix("_type").removesuffix("_attributes"))
    if needed:
        return Problem(pointer, "wrong_type", f"is {kind_of(value)}, {needed} is needed", expected=(needed,))
    return Problem(pointer, kind, message)


def _no_choice(pointer: str, expected: str, context: dict[str, Any], value: object) -> Problem:
    expected_text = expected.replace("True", "true").replace("False", "false")
    choices = expected_text.replace("'", "").replace(" or ", ", ").split(", ")
    name = context.get("tag", value)
    if not isinstance(name, str):
        return Problem(pointer, "wrong_type", f"is {kind_of(value)}, one of these is needed: {', '.join(choices)}")
    return Problem(pointer, "unknown_choice", f"must be one of {', '.join(choices)}", did_you_mean(name[:80], choices))


def unique(problems: Iterable[Problem]) -> list[Problem]:
    """Returns the first problem of each pointer and code, at most a hundred. Two checks may report the same problem."""
    first_problems: dict[tuple[str, str], Problem] = {}
    for item in problems:
        first_problems.setdefault((item.pointer, item.code), item)
    return list(first_problems.values())[:MAX_PROBLEMS]
