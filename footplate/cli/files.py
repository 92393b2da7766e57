"""`metrics`, `checkpoints`, `download`, `diff`: what jobs have made, and what they were made of."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from footplate.cli.asked import Given, UsageError, Verbs, add_job, add_verb, client_of, find
from footplate.cli.text import age, number, say, say_json, size, sparkline, table, tell

if TYPE_CHECKING:
    from footplate import Client

ENVELOPE = ("no", "step", "epoch")


def add_verbs(verbs: Verbs) -> None:
    metrics = add_verb(verbs, "metrics", run_metrics, "a job's metrics: last, least, most and the curve of each")
    add_job(metrics)
    metrics.add_argument("--names", help="only these, with commas")
    metrics.add_argument("--csv", action="store_true", help="every row, for a spreadsheet")
    checkpoints = add_verb(verbs, "checkpoints", run_checkpoints, "what a job has saved")
    add_job(checkpoints)
    download = add_verb(verbs, "download", run_download, "fetch what a job left behind: model, metrics, spec")
    add_job(download)
    download.add_argument("paths", metavar="PATH", nargs="*", help="only these files; else all of them")
    download.add_argument("-o", "--output", help="the folder to write to; else one with the job's id, here")
    diff = add_verb(verbs, "diff", run_diff, "where the effective specs of two jobs differ")
    diff.add_argument("a", metavar="A", help="a job")
    diff.add_argument("b", metavar="B", help="another one")


def run_metrics(given: Given) -> int:
    rows = find(client_of(given), given.job).metrics()
    names = _names(rows, given.names)
    if given.json:
        kept = {*ENVELOPE, *names}
        for row in rows:
            say_json({name: _text_if_not_finite(value) for name, value in row.items() if name in kept})
    elif given.csv:
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow([*ENVELOPE, *names])
        out.writerows([row.get(name, "") for name in [*ENVELOPE, *names]] for row in rows)
    else:
        head = ("METRIC", "LAST", "LEAST", "MOST", "ROWS", "CURVE")
        table(head, (_summary(name, rows) for name in names), empty="the job has told no metrics yet")
    return 0


def _names(rows: list[dict[str, Any]], wanted: str | None) -> list[str]:
    """In the order in which they came first."""
    known = list(dict.fromkeys(name for row in rows for name in row if name not in ENVELOPE))
    if wanted is None:
        return known
    asked = wanted.split(",")
    if missing := [name for name in asked if name not in known]:
        raise UsageError(f"the job has no metric {missing[0]!r}", hint=f"it has: {', '.join(known) or 'none yet'}")
    return asked


def _summary(name: str, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    values = [row[name] for row in rows if name in row]
    figures = [float(value) for value in values if isinstance(value, int | float)]
    if not figures:
        return name, number(values[-1]), "", "", str(len(values)), ""
    return name, number(values[-1]), number(min(figures)), number(max(figures)), str(len(values)), sparkline(figures)


def _text_if_not_finite(value: Any) -> Any:
    from contract.events import json_safe

    return json_safe(value)


def run_checkpoints(given: Given) -> int:
    found = find(client_of(given), given.job).checkpoints.list()
    if given.json:
        for one in found:
            say_json(one.model_dump(mode="json"))
        return 0
    head = ("CHECKPOINT", "STEP", "ATTEMPT", "STATUS", "BEST", "SIZE", "AGE")
    rows = (
        (one.id, one.step, one.attempt, one.status, "best" if one.is_best else "", size(one.bytes), age(one.created_at))
        for one in found
    )
    table(head, rows, empty="the job has saved no checkpoint yet")
    return 0


def run_download(given: Given) -> int:
    job = find(client_of(given), given.job)
    written = job.outputs.download(given.output or job.id, only=given.paths or None)
    if given.json:
        say_json([str(path) for path in written])
        return 0
    say(*map(str, written))
    if not written:
        tell(f"{job.id} has left no files: it is {job.state}")
    return 0


def run_diff(given: Given) -> int:
    client = client_of(given)
    a, b = _spec(client, given.a), _spec(client, given.b)
    found = {
        pointer: (a.get(pointer), b.get(pointer)) for pointer in sorted({*a, *b}) if a.get(pointer) != b.get(pointer)
    }
    if given.json:
        say_json({pointer: {"a": one, "b": other} for pointer, (one, other) in found.items()})
        return 0
    table(
        ("WHERE", given.a, given.b), ((p, _shown(x), _shown(y)) for p, (x, y) in found.items()), empty="no difference"
    )
    return 0


def _spec(client: Client, word: str) -> dict[str, Any]:
    return dict(_leaves("", find(client, word).spec()))


def _leaves(pointer: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves(f"{pointer}/{name}", below)
    else:
        yield pointer, value


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
