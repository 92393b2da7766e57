"""The JSON Schema of a job as users may write it: pydantic describes the long form, this adds the short ones."""

from __future__ import annotations

from typing import Any

from contract.arguments import SERVER_OWNED
from contract.resources import STRATEGIES

Schema = dict[str, Any]


def with_short_forms(schema: Schema) -> Schema:
    """The long form's schema, taking the short forms too and leaving out what is the server's."""
    definitions: dict[str, Schema] = schema["$defs"]
    for name in SERVER_OWNED:
        definitions["TrainingArguments"]["properties"].pop(name, None)
    by_name = {"type": "string", "description": "Its name alone."}
    _also(definitions, "Component", by_name)
    _also(definitions, "Schedule", by_name)
    train = {"type": "string", "description": "The training set: a component's name, or the path of a file."}
    _also(definitions, "Data", train, {"$ref": "#/$defs/ComponentObject"})
    fields = definitions["Resources"]["properties"]
    fields["strategy"] = {
        "anyOf": [{"enum": list(STRATEGIES)}, fields["strategy"]],
        "description": fields["strategy"]["description"],
    }
    schema["anyOf"] = [{"required": ["model", "data"]}, {"required": ["loop"]}]
    return schema


def _also(definitions: dict[str, Schema], name: str, *short: Schema) -> None:
    long = definitions[name]
    definitions[name + "Object"] = long
    definitions[name] = {"anyOf": [*short, {"$ref": f"#/$defs/{name}Object"}], "description": long["description"]}
