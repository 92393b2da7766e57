"""Helpers for a route's decorator: the answers and the body that openapi.json describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from footplate.contract.fields import Json


def media_type_response(media_type: str, model: type[BaseModel] | None = None) -> dict[int | str, Json]:
    """Returns the entry of `responses` for a route that can also answer with this media type.

    `model` describes the JSON of a route that encodes its answer itself.
    """
    answers: Json = {"content": {media_type: {"schema": {"type": "string"}}}}
    return {200: answers if model is None else {**answers, "model": model, "description": model.__name__}}


def already_stored_response(model: type[BaseModel]) -> dict[int | str, Json]:
    """Returns the entry of `responses` for an upload that answers 200 if the service has the content already."""
    return {200: {"model": model, "description": "The service has this content already."}}


def documented_body(
    model: type[BaseModel], example: Json, *, required: bool = False, parameters: Sequence[Json] = ()
) -> Any:
    """Returns arguments for a route's decorator that describe the body and the headers which the route reads itself."""
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
