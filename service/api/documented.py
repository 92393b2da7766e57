"""Helpers for a route's decorator: the answers and the body that openapi.json describes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from footplate.contract.fields import Json


def answers(
    model: type[BaseModel], status: int = 200, description: str = "", *, also: str = "", again: str = "",
    fails: tuple[int, ...] = (),
) -> Json:  # fmt: skip
    """Describes a successful answer, as JSON and as the media type `also`.

    `again` describes the status 200 of a route that made nothing new. `fails` are statuses of failures beyond those
    that every route with such an address has."""
    answer: Json = {"model": model, "description": description or model.__name__}
    if also:
        answer["content"] = {also: {"schema": {"type": "string"}}}
    repeated = {200: {**answer, "description": again}} if again else {}
    return {"responses": {status: answer, **repeated, **{one: {} for one in fails}}}


def takes(model: type[BaseModel], *, required: bool = False) -> Json:
    """Describes the body of a route that reads its body with `read_model`."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.pop("$defs", {}))}}
    return {"openapi_extra": {"requestBody": {"required": required, "content": content}}}


def _inlined(value: Any, definitions: Json) -> Any:
    """Returns the schema with each `$ref` replaced by what it refers to: a body's schema stands alone."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(item, definitions) for key, item in value.items()}
    return [_inlined(item, definitions) for item in value] if isinstance(value, list) else value
