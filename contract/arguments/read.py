"""The JSON border: a `training` object becomes TrainingArguments, or every problem at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from contract.arguments.agree import disagreements
from contract.arguments.notyet import CHOICES_NOT_YET, NOT_YET, SERVER_OWNED
from contract.arguments.training import TrainingArguments
from contract.errors import InvalidSpec, Problem, did_you_mean

FIELDS = tuple(field.name for field in dataclasses.fields(TrainingArguments))
_NONE: tuple[frozenset[str], str] = (frozenset(), "")
_ADAPTERS: dict[str, TypeAdapter[Any]] = {}


def read_arguments(values: Mapping[str, object], *, pointer: str = "/training") -> TrainingArguments:
    """Strict: unknown names, wrong types, the server's own names, names not there yet, disagreements: all told."""
    problems: list[Problem] = []
    good: dict[str, Any] = {}
    for name, value in values.items():
        at = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
        found = list(_problems_of(name, value, at))
        problems += found
        if not found and name in FIELDS:
            good[name] = _adapter(name).validate_json(json.dumps(value), strict=True)
    bad = {problem.pointer for problem in problems}
    args = _unchecked(good)
    for clash in disagreements(args):
        # A field that is wrong by itself was told already; what it then disagrees with would only be noise.
        if not any(f"{pointer}/{name}" in bad for name in clash.fields):
            problems.append(Problem(f"{pointer}/{clash.fields[0]}", "disagreement", clash.detail, clash.hint))
    if problems:
        raise InvalidSpec(problems)
    return args


def _problems_of(name: str, value: object, at: str) -> Iterator[Problem]:
    if name in SERVER_OWNED:
        yield Problem(at, "server_owned", f"{name} is the server's", SERVER_OWNED[name])
    elif name in NOT_YET:
        if not NOT_YET[name].accepts(value):
            yield Problem(at, "not_available_yet", f"{name} is not available yet", NOT_YET[name].instead)
    elif name not in FIELDS:
        yield Problem(at, "unknown_field", f"no training argument named {name!r}", did_you_mean(name, FIELDS))
    elif isinstance(value, str) and value in CHOICES_NOT_YET.get(name, _NONE)[0]:
        yield Problem(at, "not_available_yet", f"{name} {value} is not available yet", CHOICES_NOT_YET[name][1])
    else:
        yield from _type_problems(name, value, at)


def _type_problems(name: str, value: object, at: str) -> Iterator[Problem]:
    try:
        _adapter(name).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        for found in error.errors(include_url=False, include_context=False):
            where = "".join(f"/{part}" for part in found["loc"] if isinstance(part, int))
            yield Problem(at + where, found["type"], found["msg"], _near_choice(name, value))


def _near_choice(name: str, value: object) -> str | None:
    choices = _adapter(name).json_schema().get("enum", [])
    return did_you_mean(value, choices) if isinstance(value, str) and choices else None


def _adapter(name: str) -> TypeAdapter[Any]:
    if name not in _ADAPTERS:
        hints = get_type_hints(TrainingArguments, include_extras=True)
        for field in FIELDS:
            _ADAPTERS[field] = TypeAdapter(hints[field], config=ConfigDict(allow_inf_nan=False))
    return _ADAPTERS[name]


def _unchecked(good: Mapping[str, Any]) -> TrainingArguments:
    """The arguments with the derived values set and without the checks: they are told one by one."""
    args = TrainingArguments()
    for name, value in good.items():
        setattr(args, name, value)
    args.__post_init__()
    return args
