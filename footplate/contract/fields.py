"""Base classes and field types of specs and resources: strict and lenient models, numbers, durations, names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from footplate.contract.help_texts import meanings

T = TypeVar("T")
Json = dict[str, Any]


class DescribedModel(BaseModel):
    """A model whose JSON schema has the fields' docstrings as descriptions.

    The source is read when the schema is requested, because reading it at import would make every start slower.
    """

    meant_by: ClassVar[type | None] = None
    """The class whose field docstrings are used, if the fields are copied from another class."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, meaning in meanings(cls.meant_by or cls).items():
            if (field := cls.model_fields.get(name)) is not None:
                for key in {name, field.alias} & properties.keys():
                    properties[key].setdefault("description", meaning)
        return schema


class Resource(DescribedModel):
    """A resource of the API. The service answers with it, openapi.json describes it, and the SDK returns it.

    Reading is lenient, because a client may be older than its service. Unknown fields are ignored, and strings that are
    `OpenEnum` keep words that are new to the client. A field that is added later needs a default, because a client
    may also be newer than its service.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        defer_build=True,
        ser_json_inf_nan="strings",
        serialize_by_alias=True,
        # The schema describes the answers of this version, which never have other fields.
        json_schema_extra={"additionalProperties": False},
    )


class Page(Resource, Generic[T]):
    """One page of a list of resources. `next_cursor` requests the next page."""

    data: tuple[T, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class OpenEnum:
    """Annotates a string field that accepts any string. Its JSON schema lists only the words of this version.

    `words` is an enum or a Literal.
    """

    words: Any

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        words_schema = TypeAdapter(self.words).core_schema
        if not isinstance(self.words, type):
            return handler(words_schema)
        # pydantic's own name for the enum is used, so that all fields with this enum share one schema in the OpenAPI
        # document.
        reference = f"{self.words.__module__}.{self.words.__qualname__}:{id(self.words)}"
        named_schema: Any = {**words_schema, "ref": reference}
        return handler(
            core_schema.definitions_schema(core_schema.definition_reference_schema(reference), [named_schema])
        )


class InternalMessage(BaseModel):
    """The base of messages between our processes. Unknown fields are ignored, because the sender may be newer."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Group(DescribedModel):
    """The base of a spec's sections. A value of the wrong type is a problem, and is never converted."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def _whole(value: object) -> object:
    """Converts 5e8, which is written like a float, to an integer."""
    return int(value) if type(value) is float and value.is_integer() else value


UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_A_DURATION = r"^([0-9]+(\.[0-9]+)?[dhms])+$"
_DURATION = re.compile(_A_DURATION)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([dhms])")


def seconds(value: object) -> object:
    """Converts `"1h30m"` to seconds. Numbers are seconds already. The field's type refuses all other values."""
    if not isinstance(value, str):
        return value
    if len(value) > 32 or not _DURATION.fullmatch(value):
        raise PydanticCustomError("duration", 'a duration looks like "4h", "10m", "90s" or "1h30m", or is seconds')
    return sum(float(amount) * UNIT_SECONDS[unit] for amount, unit in _PART.findall(value))


Whole = Annotated[int, BeforeValidator(_whole)]
"""An integer, also when written 5e8. `true` is not an integer."""

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _moment(value: object) -> object:
    """Refuses numbers and dates without a time, which pydantic would accept as moments."""
    if not isinstance(value, str) or not _MOMENT.match(value):
        raise PydanticCustomError("moment", 'a moment looks like "2026-01-31T12:00:00Z"')
    return value


When = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_moment)]
"""A time in RFC 3339 with an offset. The field is not strict, because a strict one refuses text."""

DURATION = BeforeValidator(
    seconds, json_schema_input_type=float | Annotated[str, Field(pattern=_A_DURATION, max_length=32)]
)
"""Makes a float field accept durations such as "1h30m" as well. The parsed value is in seconds."""

MOST_ENTRIES = 1000


def _no_flood(value: object) -> object:
    """Refuses a list of more than MOST_ENTRIES before its entries are checked, because checking them takes seconds."""
    if isinstance(value, list) and len(value) > MOST_ENTRIES:
        raise PydanticCustomError("too_long", "too many", {"max_length": MOST_ENTRIES})
    return value


Many = Annotated[tuple[T, ...], Field(strict=False), BeforeValidator(_no_flood)]
"""A JSON list, kept as a tuple."""

PATTERNS: dict[str, str] = {}
"""Descriptions of the regular expressions of fields, for error messages."""


def pattern(regex: str, words: str, longest: int) -> Any:
    """Returns a field with this regular expression, and stores its description for error messages."""
    PATTERNS[regex] = words
    return Field(pattern=regex, max_length=longest)


ShortText = Annotated[str, pattern(r"^[^\x00-\x1f\x7f]+$", "must be one line of text, not empty", 128)]
"""One line of text, such as a job's name."""

Slug = Annotated[
    str,
    pattern(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "must be letters, digits, '_', '.' or '-', a letter or digit first", 64),
]
"""A name for machines and people, for example of a project, a pool or an evaluation set."""
