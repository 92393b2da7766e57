"""Helpers for a route's decorator: the answers and the body that openapi.json describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from footplate.contract.fields import Json


def also(media_type: str) -> dict[int | str, Json]:
    """Describes another media type of a successful answer."""
    return {200: {"content": {media_type: {"schema": {"type": "string"}}}}}


def again(model: type[BaseModel]) -> dict[int | str, Json]:
    """Describes the status 200 of an upload whose content the service has already."""
    return {200: {"model": model, "description": "It was there already."}}


def takes(model: type[BaseModel], example: Json, *, required: bool = False, parameters: Sequence[Json] = ()) -> Any:
    """Describes the body of a route that reads its body with `read_model`, and the headers that it reads itself."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.pop("$defs", {})), "example": example}}
    body = {"requestBody": {"required": required, "content": content}}
    return {"openapi_extra": {**body, **({"parameters": parameters} if parameters else {})}}


def _inlined(value: Any, definitions: Json) -> Any:
    """Returns the schema with each `$ref` replaced by its definition, because a body's schema has no definitions."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(item, definitions) for key, item in value.items()}
    return [_inlined(item, definitions) for item in value] if isinstance(value, list) else value
