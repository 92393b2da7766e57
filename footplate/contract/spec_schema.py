"""The JSON Schema of a job spec: pydantic's schema of the long form, and the short forms that users may write."""

from __future__ import annotations

from typing import Any, cast

from pydantic import TypeAdapter

from footplate.contract.arguments import SERVER_OWNED, Seq2SeqTrainingArguments
from footplate.contract.arguments.argument_fields import GenerationFields
from footplate.contract.arguments.legacy import LEGACY, RemovedArgument
from footplate.contract.help_texts import meanings
from footplate.contract.machine import STRATEGIES
from footplate.contract.spec import JobSpec

Schema = dict[str, Any]


def job_schema(reference: str = "#/$defs/{model}") -> Schema:
    """Returns the JSON Schema of a job spec, with every field's meaning, the short forms and the training arguments.

    Fields that the server sets are left out. `reference` is the form of a pointer to one of the schema's definitions.
    """
    schema = JobSpec.model_json_schema(ref_template=reference)
    definitions: dict[str, Schema] = schema["$defs"]
    training = definitions["TrainingArguments"]
    training["properties"] = _training(training["properties"])
    # `GET /components` describes the arguments of library trainers. For other trainers, unknown arguments are refused.
    training["additionalProperties"] = {"description": "An argument of the library's trainer that the spec names."}
    alone = {"type": "string", "description": "The name alone, without arguments."}
    _also(definitions, reference, "Component", alone)
    _also(definitions, reference, "Schedule", alone)
    train = {"type": "string", "description": "The training set: a component's name, or the path of a file."}
    _also(definitions, reference, "Data", train, {"$ref": reference.format(model="ComponentObject")})
    fields = definitions["Resources"]["properties"]
    by_name = [
        name
        for name, strategy in STRATEGIES.items()
        if "config" not in definitions[strategy.__name__].get("required", ())
    ]
    fields["strategy"] = {
        "anyOf": [{"enum": by_name}, fields["strategy"]],
        "description": fields["strategy"]["description"],
    }
    schema["anyOf"] = [{"required": ["model", "data"]}, {"required": ["loop"]}]
    return cast(Schema, standard(schema))


def _training(properties: Schema) -> Schema:
    """Returns the arguments that a spec takes, with their meanings. Older names are marked as deprecated."""
    descriptions = meanings(Seq2SeqTrainingArguments)
    generation = TypeAdapter(GenerationFields).json_schema()["properties"]
    return {
        name: {**schema, "description": descriptions[name]} if name in descriptions else schema
        for name, schema in {**properties, **generation}.items()
        if name not in SERVER_OWNED
    } | {name: _older(name) for name in LEGACY}


def _older(name: str) -> Schema:
    argument = LEGACY[name]
    schema: Schema = {"deprecated": True, "description": f"An older name. Instead: {argument.instead}."}
    return {**schema, "enum": list(argument.neutral)} if isinstance(argument, RemovedArgument) else schema


_STANDARD = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_OF_LISTS = {"minLength": "minItems", "maxLength": "maxItems"}


def standard(schema: Any) -> Any:
    """Renames bounds such as `ge` to JSON Schema's names, such as `minimum`.

    Pydantic leaves them as they are if a validator comes before the type.
    """
    if isinstance(schema, list):
        return [standard(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    names = {**_STANDARD, **_OF_LISTS} if schema.get("type") == "array" else _STANDARD
    return {names.get(name, name): standard(value) for name, value in schema.items()}


def _also(definitions: dict[str, Schema], reference: str, name: str, *short_forms: Schema) -> None:
    long_schema, long_name = definitions[name], f"{name}Object"
    forms = [*short_forms, {"$ref": reference.format(model=long_name)}]
    definitions |= {long_name: long_schema, name: {"anyOf": forms, "description": long_schema["description"]}}
