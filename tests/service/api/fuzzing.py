"""What Schemathesis is told of this API: how much of it to try, and what a good request may still be refused for.

Loaded by its command as its hooks, and by the test that starts it.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

CONFIG = """\
seed = 7
continue-on-failure = true
request-timeout = 60
max-stream-events = 1
warnings = false
suppress-health-check = ["too_slow"]

[auth.openapi.key]
bearer = "{key}"

[generation]
deterministic = true
max-examples = {examples}
no-shrink = true
database = "none"

[phases.coverage]
unexpected-methods = ["PUT", "TRACE"]

[checks.positive_data_acceptance]
expected-statuses = {refusals}
"""
OPERATION = """
[[operations]]
include-operation-id = "{operation}"
[operations.checks.positive_data_acceptance]
expected-statuses = {refusals}
"""
RULES = {"amend_job", "amend_webhook", "bulk_jobs", "create_key", "create_webhook", "resume_job", "rotate_webhook"}
"""Operations with rules that no schema says: between fields, field and query, about where a name leads, how long "2h"
is, or what may lie in an object that is somebody's own. Add a route's name here if it has."""
REFUSALS = ["2xx", "3xx", "401", "403", "404", "409", "412", "416", "429"]
"""How a request that its schema allows may be answered: what it is about may not be there, or not any more."""


def config(document: dict[str, Any], *, key: str, examples: int) -> str:
    """For a spec there are rules that no schema can say, a cursor is whatever the page before said, and a key may have
    been used for something else."""
    wise = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
        if operation["operationId"] in RULES
        or _reads_a_spec(operation)
        or _reads_a_file(operation)
        or _takes(operation, "cursor", "Idempotency-Key", "last-event-id")
    ]
    report = CONFIG.format(key=key, examples=examples, refusals=REFUSALS)
    return report + "".join(OPERATION.format(operation=item, refusals=[*REFUSALS, "413", "422"]) for item in wise)


def _reads_a_spec(operation: dict[str, Any]) -> bool:
    schema = _bodies(operation).get("application/json", {}).get("schema", {})
    return "/JobSpec" in str(schema) or "patch" in schema.get("properties", {})


def _takes(operation: dict[str, Any], *names: str) -> bool:
    return any(item["name"] in names for item in operation.get("parameters", ()))


def _reads_a_file(operation: dict[str, Any]) -> bool:
    return any(media_type != "application/json" for media_type in _bodies(operation))


def _bodies(operation: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
    return result


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("my_code.py", "def model(): ...\n")
    return file.getvalue()


def install() -> None:
    import schemathesis
    from hypothesis import strategies as st

    schemathesis.openapi.media_type("application/zip", st.just(_zip()) | st.binary(max_size=100))

    @schemathesis.hook
    def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
        """Whatever else a route reads that is no JSON goes out as it is."""
        for operations in raw_schema["paths"].values():
            for operation in operations.values():
                for media_type in _bodies(operation):
                    if media_type != "application/json":
                        schemathesis.serializer.alias(media_type, "application/octet-stream")


if __name__ == "fuzzing":
    install()
