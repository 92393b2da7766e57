"""Writes the pages that are made from the code. `make fix` runs it.

`pages` lists the pages. Most texts are the docstrings below fields and states in the code. A test compares the pages
with the code.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs import diagram
from docs.errors_page import errors_page
from docs.markdown import table_cell
from docs.parity_page import parity_page
from docs.performance_page import performance_page, plot
from docs.rest_page import rest_page
from docs.spec_page import libraries, spec_page
from footplate.contract import events, lifecycle
from footplate.contract.components import GROUPS
from footplate.contract.help_texts import meanings
from footplate.contract.settings import Settings, variable
from footplate.runtime.catalogue import describe
from footplate.sdk.settings import ClientSettings
from service.api.openapi import describe as describe_api
from service.app import routes
from service.counters import Counts, prometheus_name
from service.prometheus_metrics import Meters
from service.settings import ServiceSettings
from worker.settings import WorkerSettings

FOLDER = Path(__file__).parent
MADE = "<!-- Made by docs/generate.py; edit the code that it is made from. -->\n"


def pages() -> dict[str, str]:
    api = describe_api(routes())
    return {
        "reference/settings.md": settings_page(),
        "reference/lifecycle.md": lifecycle_page(),
        "reference/events.md": events_page(),
        "reference/parity.md": parity_page(MADE),
        "reference/metrics.md": metrics_page(),
        "reference/components.md": components_page(),
        "reference/spec.md": spec_page(MADE),
        "reference/errors.md": errors_page(MADE),
        "reference/rest.md": rest_page(MADE, api),
        "explanation/performance.md": performance_page(MADE),
        "explanation/performance.svg": plot(),
        "explanation/processes.svg": diagram.processes(),
        "explanation/way.svg": diagram.way(),
        "reference/states.svg": diagram.states(),
        "openapi.json": json.dumps(api, indent=1, ensure_ascii=False) + "\n",
    }


def settings_page() -> str:
    return "\n".join(
        [
            "# Every setting",
            MADE,
            "Settings are environment variables, read once at the start. An empty variable counts as unset. A wrong",
            "value stops the start with a message that names the variable, and so does a `FOOTPLATE_` variable that no",
            "process reads. `make up` passes its environment to every process that it starts. A path may begin with",
            "`~`, the home folder of the user.",
            "\n## The service: `python -m service api | control | all | migrate | backup`\n",
            *table(ServiceSettings),
            "\n## A node: `python -m worker`\n",
            *table(WorkerSettings),
            "\n## The client and the command: `from footplate import Client`, `footplate`\n",
            *table(ClientSettings),
            "",
        ]
    )


def table(settings: type[Settings]) -> list[str]:
    rows, meaning = ["| variable | default | meaning |", "|---|---|---|"], meanings(settings)
    for name, field in settings.model_fields.items():
        rows.append(f"| `{variable(name)}` | {default_of(field)} | {table_cell(meaning.get(name))} |")
    return rows


def default_of(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "this host's name"
    return "" if field.default in (None, "", PydanticUndefined) else f"`{field.default}`"


def lifecycle_page() -> str:
    moves = [
        f"| {state} | {', '.join(sorted(next_states)) or 'nothing, because it is final'} |"
        for state, next_states in lifecycle.MOVES.items()
    ]
    return "\n".join(
        [
            "# The life of a job",
            MADE,
            "A job is in one of eight states, and has a reason beside its state. One guarded SQL statement makes each",
            "move. A request that comes too late moves nothing, and its answer says so.",
            "\n![The states of a job and the moves between them, as the table below lists them](states.svg)",
            "\nMost jobs go this way: queued → starting → running → succeeded.",
            "A pause is running → stopping → paused, and a lost node is running → queued.",
            "\n## States\n",
            *members(lifecycle.JobState),
            "\n## Moves\n",
            "| from | to |",
            "|---|---|",
            *moves,
            "\n## Reasons\n",
            *members(lifecycle.Reason),
            "\n## Kinds of stop\n",
            *members(lifecycle.StopMode),
            "",
        ]
    )


def events_page() -> str:
    envelope = [f"`{name}`" for name in events.Event.model_fields]
    return "\n".join(
        [
            "# Events",
            MADE,
            "An event is one immutable fact about a job. Every event has the same envelope: "
            + ", ".join(envelope)
            + ".",
            "`no` numbers the events of a job without gaps, and is the cursor of readers. The node's own numbers are",
            "`attempt`, `source` and `seq`.",
            'NaN and infinities travel as the strings `"NaN"`, `"Infinity"`, `"-Infinity"`. Readers ignore kinds that',
            "they do not know.",
            "\n## Kinds\n",
            *members(events.Kind),
            "",
        ]
    )


def metrics_page() -> str:
    api_metrics = [metric for metric in Meters().registry.collect() if metric.name.startswith("footplate")]
    rows = [f"| `{scraped_name(metric)}` | {metric.type} | {metric.documentation} |" for metric in api_metrics]
    control_rows = [
        f"| `{prometheus_name(field.name)}` | {field.metadata['meaning']} | {field.metadata['advice']} |"
        for field in dataclasses.fields(Counts)
    ]
    return "\n".join(
        [
            "# What Prometheus may scrape",
            MADE,
            "`GET /metrics` of any API process. What to alert on: [monitor the service](../guides/monitor.md).",
            "\n## Of control: counted since its start\n",
            "| name | meaning | what to do when it moves |",
            "|---|---|---|",
            *control_rows,
            "\n`retries` and `jobs_failed` have the label `reason`, one of those in [lifecycle](lifecycle.md). Any API",
            "process shows these numbers: its own control's where it has one, else what control leaves in Redis.",
            "\n## Of the API process that is asked, and of SQL\n",
            "| name | type | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def scraped_name(metric: Metric) -> str:
    """Returns the name under which Prometheus scrapes a metric. That of a counter has a suffix."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def components_page() -> str:
    """Returns the page of components, from the registered entry points and their signatures."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    lines = []
    for group in GROUPS:
        registered = project["entry-points"].get(f"footplate.{group}", {})
        lines += [f"\n## {group.capitalize()}\n"] if registered else []
        for name, target in sorted(registered.items()):
            lines += component(group, name, target)
    return "\n".join(
        [
            "# What a spec may name",
            MADE,
            "All fields of a spec, with an example each: [the job spec](spec.md).\n",
            'Write a name alone, or `{"use": name, "args": {…}}`. `GET /components` lists the same, and what the',
            "plugins on your nodes add. `POST /jobs` refuses a wrong name or argument. Paths are names under",
            "`data://` or `models://`, or [on a hub](../guides/hub.md). A component that needs another library names",
            "the extra that has it.",
            *lines,
            "",
        ]
    )


def component(group: str, name: str, target: str) -> list[str]:
    module, _, attribute = target.partition(":")
    factory = getattr(importlib.import_module(module), attribute)
    with libraries():
        description = describe(group, name, factory)
    library = getattr(factory, "needs", None)
    extra = f" Needs the extra `{library[1]}`." if library else ""
    arguments = [
        f"  - `{argument}`{default(description.args, argument)}: {table_cell(schema.get('description'))}"
        for argument, schema in description.args["properties"].items()
    ]
    return [f"- **{name}**: {table_cell(description.summary)}{extra}", *arguments]


def default(args: dict[str, Any], name: str) -> str:
    return "" if name in args["required"] else f" = `{json.dumps(args['properties'][name].get('default'))}`"


def members(enum: type[StrEnum]) -> list[str]:
    """`- **name**: its docstring`, in the order of the code."""
    body = ast.parse(inspect.getsource(enum)).body[0]
    assert isinstance(body, ast.ClassDef)
    lines = []
    for statement, next_statement in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            docstring = next_statement.value if isinstance(next_statement, ast.Expr) else None
            meaning = table_cell(str(docstring.value) if isinstance(docstring, ast.Constant) else "")
            lines.append(f"- **{enum[statement.targets[0].id].value}**" + (f": {meaning}" if meaning else ""))
    return lines


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
