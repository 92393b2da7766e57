"""`checkpoints`, `download`, `diff`: what jobs have made, and what they were made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from footplate.cli.asked import Given, Verbs, add_job, add_verb, client_of, find
from footplate.cli.text import age, say, say_json, size, table, tell

if TYPE_CHECKING:
    from footplate import Client


def add_verbs(verbs: Verbs) -> None:
    checkpoints = add_verb(verbs, "checkpoints", run_checkpoints, "what a job has saved")
    add_job(checkpoints)
    download = add_verb(verbs, "download", run_download, "fetch what a job left behind: model, metrics, spec")
    add_job(download)
    download.add_argument("paths", metavar="PATH", nargs="*", help="only these files; else all of them")
    download.add_argument("-o", "--output", help="the folder to write to; else one with the job's id, here")
    diff = add_verb(verbs, "diff", run_diff, "where the effective specs of two jobs differ")
    diff.add_argument("a", metavar="A", help="a job")
    diff.add_argument("b", metavar="B", help="another one")


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
