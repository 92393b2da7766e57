"""Configures Schemathesis for this API. It limits the number of tries, and lists refusals that a good request may get.

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
"""Operations with rules that no schema states.

The rules concern several fields, a query, the target of a name, durations such as "2h", or objects of a user's own. Add
the name of a route that has such rules.
"""
REFUSALS = ["2xx", "3xx", "401", "403", "404", "409", "412", "416", "429"]
"""Answers to requests that their schema allows, because the resource may be missing or gone."""


def config(document: dict[str, Any], *, key: str, examples: int) -> str:
    """Returns Schemathesis' configuration, which accepts more refusals from some operations.

    Their specs have rules that no schema states, their cursor comes from the previous page, or their idempotency key
    may have been used already.
    """
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
        """Sends request bodies that are not JSON unchanged."""
        for operations in raw_schema["paths"].values():
            for operation in operations.values():
                for media_type in _bodies(operation):
                    if media_type != "application/json":
                        schemathesis.serializer.alias(media_type, "application/octet-stream")


if __name__ == "fuzzing":
    install()
