"""What every shape is, and how a route's decorator says which it takes and answers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from footplate.contract.fields import Told

Json = dict[str, Any]


class Shape(Told):
    model_config = ConfigDict(extra="forbid")


def answers(
    model: type[BaseModel], status: int = 200, description: str = "", *, also: str = "", again: str = "",
    fails: tuple[int, ...] = (),
) -> Json:  # fmt: skip
    """For a route's decorator: what it answers when all is well, as JSON and as another type where there is one.
    `again` is what 200 means where it was there already. Problems are added to every route alike; `fails` are those
    that one has beyond what its address says."""
    answer: Json = {"model": model, "description": description or model.__name__}
    if also:
        answer["content"] = {also: {"schema": {"type": "string"}}}
    repeated = {200: {**answer, "description": again}} if again else {}
    return {"responses": {status: answer, **repeated, **{one: {} for one in fails}}}


def takes(model: type[BaseModel], *, required: bool = False) -> Json:
    """For a route's decorator: the body that it reads itself."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.pop("$defs", {}))}}
    return {"openapi_extra": {"requestBody": {"required": required, "content": content}}}


def _inlined(value: Any, definitions: Json) -> Any:
    """Small schemas with their definitions in place: a route's own body has no others to share them with."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(item, definitions) for key, item in value.items()}
    return [_inlined(item, definitions) for item in value] if isinstance(value, list) else value
