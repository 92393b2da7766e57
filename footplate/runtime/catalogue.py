"""What every registered component is and takes, as JSON: made by importing them all, in a child of the warm parent.

Apart from the node because imports of strangers cost seconds, memory and sometimes more; from the warm parent because
torch is there already. A component that cannot be imported is left out, and said on stderr: a job that names it is told
that nobody here has it.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, create_model
from pydantic.fields import FieldInfo

from footplate.components.extras import missing
from footplate.contract.components import GROUPS, PACKAGES, Catalogue, Described
from footplate.runtime.build import registered
from footplate.runtime.learning import torchmetrics_names


def write(path: Path) -> None:
    """Whole or not at all: the heartbeat looks for it while this is going on."""
    catalogue = Catalogue.of([*describe_all(), *packages()])
    being_written = path.with_suffix(".new")
    being_written.write_text(json.dumps({"hash": catalogue.hash, "catalogue": catalogue.as_json()}))
    being_written.rename(path)


def packages() -> Iterator[Described]:
    """What is installed, for `code.requires`."""
    found = {_canonical(name): one.version for one in distributions() if (name := one.metadata["Name"])}
    for name, version in sorted(found.items()):
        yield Described(name=name, group=PACKAGES, summary=version, args={})


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def describe_all() -> Iterator[Described]:
    from footplate.trainer.metrics import METRICS, TEXTS
    from footplate.trainer.metrics.third_party import PREFIX

    for group in GROUPS:
        for name, entry in sorted(registered(group).items()):
            try:
                yield describe(group, name, entry.load())
            except Exception as error:
                print(f"{group} {name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    for name in sorted(set(METRICS) - set(registered("metrics"))):
        yield Described(name=name, group="metrics", summary=f"{name}, over a whole evaluation")
    found = torchmetrics_names()
    lacks = "" if found else "torchmetrics (pip install 'footplate[metrics]')"
    for name in sorted(set(TEXTS) - set(registered("metrics"))):
        yield Described(name=name, group="metrics", summary=f"{name} of what was generated", needs=lacks)
    for name in found:
        anything = {"type": "object", "additionalProperties": True}
        yield Described(name=PREFIX + name, group="metrics", summary=f"{name} of torchmetrics", args=anything)


def describe(group: str, name: str, target: Any) -> Described:
    """Its first line, and the JSON Schema of its keyword arguments."""
    summary = (inspect.getdoc(target) or "").partition("\n")[0].strip()
    return Described(name=name, group=group, summary=summary, args=arguments_schema(target), needs=missing(target))


def arguments_schema(target: Any) -> dict[str, Any]:
    """What its signature says: types, defaults, and in `Annotated[..., "text"]` the meaning."""
    fields: dict[str, Any] = {}
    is_open = False
    for parameter in inspect.signature(target, eval_str=True).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            is_open = True
        elif parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            fields[parameter.name] = _field(parameter)
    schema = TypeAdapter(create_model("Arguments", **fields)).json_schema()
    return {
        "type": "object",
        "properties": {name: _plain(one) for name, one in schema.get("properties", {}).items()},
        "required": schema.get("required", []),
        "additionalProperties": is_open,
        **({"$defs": schema["$defs"]} if "$defs" in schema else {}),
    }


def _field(parameter: inspect.Parameter) -> tuple[Any, Any]:
    annotation = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
    text = next((one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, str)), None)
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return annotation, FieldInfo(default=default, description=text)


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != "title"}
