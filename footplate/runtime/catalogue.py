"""Describes every registered component and its arguments as JSON. A child of the warm parent imports them all.

The node does not import them itself, because other packages cost seconds and memory, and may crash. The warm parent has
imported torch already. A component that cannot be imported is logged on stderr and left out, so jobs cannot name it.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, create_model
from pydantic.fields import FieldInfo

from footplate.components.component import missing, public_names
from footplate.contract.components import GROUPS, PACKAGES, Catalogue, Described
from footplate.runtime.build import registered


def write(path: Path) -> None:
    """Writes the catalogue atomically, because the heartbeat may read the file at any time."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(Catalogue.of([*describe_all(), *packages()]).as_json()))
    temporary.rename(path)


def packages() -> Iterator[Described]:
    """Yields the installed packages, against which `code.requires` is checked."""
    versions = {
        canonicalize_name(name): package.version for package in distributions() if (name := package.metadata["Name"])
    }
    for name, version in sorted(versions.items()):
        yield Described(name=name, group=PACKAGES, summary=version, args={})


def describe_all() -> Iterator[Described]:
    from footplate.trainer.metrics.choose import METRICS
    from footplate.trainer.metrics.third_party import PREFIX, TEXTS

    for group in GROUPS:
        for name, entry in sorted(registered(group).items()):
            try:
                yield describe(group, name, entry.load())
            except Exception as error:
                print(f"{group} {name} cannot be imported: {type(error).__name__}: {error}", file=sys.stderr)
    for name in sorted(set(METRICS) - set(registered("metrics"))):
        yield Described(name=name, group="metrics", summary=f"{name}, over a whole evaluation")
    names = [name for name in public_names("torchmetrics", "__init__.py") if name[0].isupper()]
    lacks = "" if names else "torchmetrics (pip install 'footplate[metrics]')"
    for name in sorted(set(TEXTS) - set(registered("metrics"))):
        yield Described(name=name, group="metrics", summary=f"{name} of generated texts", needs=lacks)
    for name in names:
        any_object = {"type": "object", "additionalProperties": True}
        yield Described(name=PREFIX + name, group="metrics", summary=f"{name} of torchmetrics", args=any_object)


def describe(group: str, name: str, target: Any) -> Described:
    """Returns the first line of a component's docstring, and the JSON Schema of its keyword arguments."""
    summary = (inspect.getdoc(target) or "").partition("\n")[0].strip()
    return Described(
        name=name,
        group=group,
        summary=summary,
        args=arguments_schema(target),
        needs=missing(target),
        rows=getattr(target, "rows", []),
        ignores=getattr(target, "ignores", []),
    )


def arguments_schema(target: Any) -> dict[str, Any]:
    """Returns the schema of a signature: types, defaults, and the meanings in `Annotated[..., "text"]`."""
    fields: dict[str, Any] = {}
    is_open = False
    for parameter in inspect.signature(target, eval_str=True).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            is_open = True
        elif parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            fields[parameter.name] = _field(parameter)
    schema = TypeAdapter(create_model("Arguments", **fields)).json_schema()
    properties = schema.get("properties", {})
    for field in properties.values():
        field.pop("title", None)
    return {
        "type": "object",
        "properties": properties,
        "required": schema.get("required", []),
        "additionalProperties": is_open,
        **({"$defs": schema["$defs"]} if "$defs" in schema else {}),
    }


def _field(parameter: inspect.Parameter) -> tuple[Any, Any]:
    annotation = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
    text = next((item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, str)), None)
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return annotation, FieldInfo(default=default, description=text)
