"""The description in /openapi.json has all answers of each route, with correct examples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import jsonschema_rs

from service.api.openapi import describe
from service.app import routes
from service.auth import is_open
from service.problems import MEDIA_TYPE

Json = dict[str, Any]


@cache
def document() -> Json:
    """Returns the description. It is not made at import, because every test process imports this file."""
    return describe(routes())


class Operation(NamedTuple):
    method: str
    path: str
    fields: Json

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"


def operations() -> list[Operation]:
    paths = document()["paths"].items()
    return [Operation(method, path, fields) for path, methods in paths for method, fields in methods.items()]


def resolved(answer: Json) -> Json:
    """Returns the answer, or the shared answer to which its `$ref` points."""
    reference = answer.get("$ref", "")
    return document()["components"]["responses"][reference.rpartition("/")[2]] if reference else answer


def contents(operation: Operation) -> Iterator[tuple[str, Json]]:
    """Yields the body of the request and of each answer, with its place in the document."""
    report = operation.fields
    for where, part in (("the body", report.get("requestBody", {})), *report["responses"].items()):
        for media_type, content in resolved(part).get("content", {}).items():
            yield f"{operation}, {where}, {media_type}", content


def test_every_answer_of_a_route_is_in_the_openapi_document() -> None:
    for operation in operations():
        answers = operation.fields["responses"]

        assert "default" not in answers, f"{operation}: each status must be described, not a default"
        assert any(status.startswith("2") for status in answers), operation
        assert {"422", "500"} <= set(answers), operation
        assert is_open(operation.path) or {"401", "403", "429", "503"} <= set(answers), operation
        for status, answer in answers.items():
            if status >= "400" and (operation.path, status) != ("/readyz", "503"):
                assert MEDIA_TYPE in resolved(answer)["content"], f"{operation}: {status} must be a problem document"


def test_every_operation_has_a_name_a_summary_and_a_tag() -> None:
    for operation in operations():
        name = operation.fields["operationId"]
        assert name.isidentifier(), f"{operation}: generated clients use the name as an identifier"
        assert operation.fields["summary"], operation
        assert operation.fields["tags"], operation


def test_every_example_fits_its_schema() -> None:
    for operation in operations():
        parameters = [(f"{operation}, {item['name']}", item) for item in operation.fields.get("parameters", ())]
        for where, part in [*contents(operation), *parameters]:
            assert "json" not in where or part["schema"] == {"type": "object"} or "example" in part, f"{where} has none"
            if "example" in part:
                schema = {**part["schema"], "components": document()["components"]}
                wrong = [str(error) for error in jsonschema_rs.validator_for(schema).iter_errors(part["example"])]
                assert not wrong, f"{where}: write a valid example in service/api/examples.py: {wrong}"


def test_a_created_job_links_to_every_operation_on_a_job() -> None:
    links = document()["paths"]["/jobs"]["post"]["responses"]["201"]["links"]
    about_a_job = {
        operation.fields["operationId"] for operation in operations() if operation.path.startswith("/jobs/{job}")
    }

    assert set(links) == about_a_job
    assert links["cancel_job"]["parameters"] == {"job": "$response.body#/id"}


def test_optional_parameters_are_not_described_as_nullable() -> None:
    for operation in operations():
        for message in operation.fields.get("parameters", ()):
            assert {"type": "null"} not in message["schema"].get("anyOf", ()), f"{operation}, {message['name']}"


def test_every_reference_in_the_openapi_document_resolves() -> None:
    def pointers(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from (pointer for item in value.values() for pointer in pointers(item))
        elif isinstance(value, list):
            yield from (pointer for item in value for pointer in pointers(item))
        elif isinstance(value, str) and value.startswith("#/"):
            yield value

    result = set(pointers(document()))

    assert "#/components/schemas/Ddp" in result
    for pointer in result:
        part: Any = document()
        for name in pointer.removeprefix("#/").split("/"):
            assert name in part, f"{pointer} does not exist"
            part = part[name]
