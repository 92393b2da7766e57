"""The description in /openapi.json has all answers of each route, with correct examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jsonschema_rs
import pytest

from service.api.openapi import describe
from service.app import routes
from service.auth import is_open
from service.problems import MEDIA_TYPE

Json = dict[str, Any]
DOCUMENT: Json = describe(routes())


class Operation(NamedTuple):
    method: str
    path: str
    fields: Json

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"


OPERATIONS = [
    Operation(method, path, report) for path, methods in DOCUMENT["paths"].items() for method, report in methods.items()
]


def resolved(answer: Json) -> Json:
    """Returns the answer, or the shared answer to which its `$ref` points."""
    reference = answer.get("$ref", "")
    return DOCUMENT["components"]["responses"][reference.rpartition("/")[2]] if reference else answer


def contents(operation: Operation) -> Iterator[tuple[str, Json]]:
    """Yields the body of the request and of each answer, with its place in the document."""
    report = operation.fields
    for where, part in (("the body", report.get("requestBody", {})), *report["responses"].items()):
        for media_type, content in resolved(part).get("content", {}).items():
            yield f"{operation}, {where}, {media_type}", content


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_every_answer_of_a_route_is_in_the_openapi_document(operation: Operation) -> None:
    answers = operation.fields["responses"]

    assert "default" not in answers, "each status must be described, not a default"
    assert any(status.startswith("2") for status in answers)
    assert {"422", "500"} <= set(answers)
    assert is_open(operation.path) or {"401", "403", "429", "503"} <= set(answers)
    for status, answer in answers.items():
        if status >= "400" and (operation.path, status) != ("/readyz", "503"):
            assert MEDIA_TYPE in resolved(answer)["content"], f"{status} must be described as a problem document"


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_every_operation_has_a_name_a_summary_and_a_tag(operation: Operation) -> None:
    assert operation.fields["operationId"].isidentifier(), "generated clients use the name as an identifier"
    assert operation.fields["summary"]
    assert operation.fields["tags"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_every_example_fits_its_schema(operation: Operation) -> None:
    parameters = [(f"{operation}, {message['name']}", message) for message in operation.fields.get("parameters", ())]
    for where, report in [*contents(operation), *parameters]:
        assert "json" not in where or report["schema"] == {"type": "object"} or "example" in report, f"{where} has none"
        if "example" in report:
            schema = {**report["schema"], "components": DOCUMENT["components"]}
            wrong = [str(error) for error in jsonschema_rs.validator_for(schema).iter_errors(report["example"])]
            assert not wrong, f"{where}: write a valid example in service/api/examples.py"


def test_a_created_job_links_to_every_operation_on_a_job() -> None:
    made = DOCUMENT["paths"]["/jobs"]["post"]["responses"]["201"]["links"]
    about_a_job = {
        operation.fields["operationId"] for operation in OPERATIONS if operation.path.startswith("/jobs/{job}")
    }

    assert set(made) == about_a_job
    assert made["cancel_job"]["parameters"] == {"job": "$response.body#/id"}


def test_optional_parameters_are_not_described_as_nullable() -> None:
    for operation in OPERATIONS:
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

    result = set(pointers(DOCUMENT))

    assert "#/components/schemas/Ddp" in result
    for pointer in result:
        part: Any = DOCUMENT
        for name in pointer.removeprefix("#/").split("/"):
            assert name in part, f"{pointer} does not exist"
            part = part[name]
