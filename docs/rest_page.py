"""Makes docs/reference/rest.md: a session with curl that a test runs, and every operation of the API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from docs.markdown import one_line, table_cell

Json = dict[str, Any]

SESSION = """
## A session with curl

Set the address once. If the service has keys, add `-H "Authorization: Bearer $FOOTPLATE_API_KEY"` to each command.

```sh
url=${FOOTPLATE_URL:-http://127.0.0.1:8080}
```

Check a spec without creating a job:

```sh
curl -fsS $url/jobs/validate -H 'Content-Type: application/json' -d '{"model": "toy/mlp", "data": "toy/regression"}'
```

Create a job. The `Idempotency-Key` makes it safe to send the request again if the answer is lost:

```sh
curl -fsS $url/jobs -H 'Content-Type: application/json' -H "Idempotency-Key: my-key-$RANDOM$RANDOM" \\
  -d '{"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 20, "logging_steps": 5}}' > job.json
job=$(grep -o 'job_[0-9a-f]*' job.json | head -1)
```

Follow it until it ends. The stream is server-sent events, and closes after the last one:

```sh
curl -fsSN $url/jobs/$job/stream > events.txt
```

Read its state, its metrics and its outputs:

```sh
curl -fsS $url/jobs/$job
curl -fsS "$url/jobs/$job/metrics?after=0"
curl -fsS $url/jobs/$job/outputs
curl -fsS $url/jobs/$job/outputs/model.safetensors -o model.safetensors
```

A mistake is answered with its place and a hint:

```sh
curl -sS $url/jobs -H 'Content-Type: application/json' -d '{"model": "toy/mlp", "data": "toy/regresion"}'
```

## What all routes have in common

- **Lists** answer `{"data": […], "next_cursor": …}`. Send `cursor=` with `next_cursor` for the next page.
- **Times** are RFC 3339 in UTC. **Ids** begin with their kind: `job_…`, `file_…`.
- **Errors** are `application/problem+json` with a stable `code` ([all codes](errors.md)).
- **Versions**: a job's `ETag` changes with its state. Send it as `If-Match` to change only what you have read.
- **Project**: a key of project `*` adds `?project=name` to act in a project.
- **Examples**: `$job`, `$checkpoint` and the like are the ids that you mean, and FILE is a file of yours.
- The [websockets](stream.md) have a page of their own. `GET /openapi.json` has this description for programs, and
  `/docs` of the service shows it.
"""
MANY = 1_000_000
QUERIES = {"GET /metrics/series": "jobs=$job", "POST /files": "name=rows.jsonl"}
TITLES = {
    "jobs": "Jobs", "history": "The history of a job", "metrics": "Curves", "live": "Live",
    "checkpoints": "Checkpoints", "files": "Files and outputs", "bundles": "Bundles of code",
    "nodes": "Nodes", "keys": "Keys", "webhooks": "Webhooks", "service": "The service",
}  # fmt: skip


def rest_page(notice: str, api: Json) -> str:
    by_tag: dict[str, list[str]] = {tag: [] for tag in TITLES}
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            by_tag[operation["tags"][0]] += operation_lines(method.upper(), path, operation)
    lines = [line for tag, title in TITLES.items() for line in [f"\n## {title}", *by_tag[tag]]]
    return "\n".join(["# The REST API", notice, "Every route, with an example.", SESSION.rstrip(), *lines, ""])


def operation_lines(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f"\n### {method} {path}\n"
    yield f"{operation['summary'].rstrip('.')}."
    if description := one_line(operation.get("description")):
        yield f"\n{description}"
    parameters = [parameter for parameter in operation.get("parameters", []) if parameter["in"] in ("query", "header")]
    if parameters:
        yield "\n| parameter | meaning |\n|---|---|"
        for parameter in parameters:
            schema = parameter.get("schema", {})
            meaning = one_line(parameter.get("description") or schema.get("description"))
            cell = table_cell(" ".join(filter(None, [meaning, *values(schema)])))
            yield f"| `{parameter['name']}` | {cell} |"
    yield f"\n```bash\n{curl(method, path, operation)}\n```"
    success_codes = [status for status in operation["responses"] if status < "300"]
    error_codes = [status for status in operation["responses"] if status >= "400"]
    yield f"\nAnswers {', '.join(success_codes)}; errors {', '.join(error_codes)}."


def values(schema: Json) -> Iterator[str]:
    """Yields the choices, the limits and the default of a parameter, each as a sentence."""
    if choices := schema.get("enum"):
        yield f"One of {', '.join(f'`{choice}`' for choice in choices)}."
    if "minimum" in schema and schema.get("maximum", MANY) < MANY:
        yield f"From {schema['minimum']} to {schema['maximum']:,}."
    if default := schema.get("default"):
        yield f"Default: `{default}`."


def curl(method: str, path: str, operation: Json) -> str:
    """Returns a command that sends the request, with the description's own example of a body."""
    address = "$url" + re.sub(r"\{(\w+)\}", r"$\1", path)
    if query := QUERIES.get(f"{method} {path}"):
        address = f'"{address}?{query}"'
    content = operation.get("requestBody", {}).get("content", {})
    words = ["curl", *([] if method in ("GET", "POST") and (content or method == "GET") else ["-X", method]), address]
    if "application/json" in content:
        body = content["application/json"]
        example = body.get("example", next(iter(body.get("examples", {}).values()), {}).get("value", {}))
        words += ["-H 'Content-Type: application/json'", f"-d '{json.dumps(example, ensure_ascii=False)}'"]
    elif content:
        kind = next(iter(content))
        words += [f"-H 'Content-Type: {kind}'", "--data-binary @FILE"]
    return " ".join(words)
