"""The verbs `checkpoints`, `download`, `export`, `upload`, `files` and `diff`: files of jobs and users, and specs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from footplate.cli.context import Given, UsageError, Verbs, add_job, add_verb, client_of, find, say_deleted, show
from footplate.cli.text import age, clean, say, say_json, size, table, tell
from footplate.sdk.row_reports import COLUMN_HEADS, column_cells, headline, problems

if TYPE_CHECKING:
    from footplate import Client
    from footplate.sdk.blocking import SavedCheckpoint
    from footplate.sdk.models import UploadedFile


def add_verbs(verbs: Verbs) -> None:
    checkpoints = add_verb(
        verbs, "checkpoints", run_checkpoints, "list the checkpoints of a job, or pin, unpin or delete one"
    )
    add_job(checkpoints)
    what = checkpoints.add_mutually_exclusive_group()
    for option, text in (
        ("pin", "keep this one whatever the job's limits say"),
        ("unpin", "do not keep this one any more"),
        ("delete", "delete this one, and print how much that frees"),
    ):
        what.add_argument(f"--{option}", metavar="CHECKPOINT", help=f"{text}: an id, latest or best")
    download = add_verb(verbs, "download", run_download, "fetch what a job left behind: model, metrics, spec")
    add_job(download)
    download.add_argument("paths", metavar="PATH", nargs="*", help="only these files; else all of them")
    download.add_argument("--checkpoint", help="fetch this checkpoint instead: an id, latest or best")
    download.add_argument("-o", "--output", help="the folder to write to; else one with the job's id, here")
    export = add_verb(verbs, "export", run_export, "write a job's model, tokenizer and card to a folder")
    add_job(export)
    export.add_argument("--checkpoint", metavar="C", help="latest, best, or an id; else the job's final model")
    export.add_argument("--merge", action="store_true", help="merge the adapters into the weights")
    export.add_argument("-o", "--output", metavar="FOLDER", help="the folder to write to; else one with the job's id")
    upload = add_verb(verbs, "upload", run_upload, "upload files of rows, and print their ids for specs")
    upload.add_argument("paths", metavar="PATH", nargs="+", help="JSON lines, CSV, Parquet or text")
    upload.add_argument(
        "--tokenizer", metavar="models://NAME", help="count the tokens of all texts with this tokenizer"
    )
    files = add_verb(verbs, "files", run_files, "list uploaded files, or show the rows of one")
    files.add_argument("file", metavar="FILE", nargs="?", help="show the columns and the bad rows of this file")
    files.add_argument("--delete", metavar="FILE", help="delete this file")
    diff = add_verb(verbs, "diff", run_diff, "where the effective specs of two jobs differ")
    diff.add_argument("a", metavar="A", help="a job")
    diff.add_argument("b", metavar="B", help="another one")


def run_checkpoints(given: Given) -> int:
    saved = find(client_of(given), given.job).checkpoints
    if given.delete:
        return _delete(saved.get(given.delete), given)
    if given.pin:
        checkpoints: Sequence[SavedCheckpoint] = [saved.get(given.pin).pin()]
    elif given.unpin:
        checkpoints = [saved.get(given.unpin).unpin()]
    else:
        checkpoints = saved.list()
    head = ("CHECKPOINT", "STEP", "ATTEMPT", "STATUS", "BEST", "PINNED", "SIZE", "AGE")
    return show(given, checkpoints, head, _checkpoint_row, empty="the job has saved no checkpoint yet")


def _checkpoint_row(one: SavedCheckpoint) -> tuple[object, ...]:
    best, pinned = "best" if one.is_best else "", "pinned" if one.pinned else ""
    return one.id, one.step, one.attempt, one.status, best, pinned, size(one.bytes), age(one.created_at)


def _delete(one: SavedCheckpoint, given: Given) -> int:
    frees = one.delete()
    if given.json:
        say_json({"id": one.id, "frees_bytes": frees})
    else:
        say(f"{one.id} is deleted soon, which frees {size(frees)}")
    return 0


def run_download(given: Given) -> int:
    if given.checkpoint and given.paths:
        raise UsageError("a checkpoint is fetched whole", hint="leave the paths out, or --checkpoint")
    with _transferring(given) as client:
        job = find(client, given.job)
        if given.checkpoint:
            checkpoint = job.checkpoints.get(given.checkpoint)
            written = checkpoint.download(given.output or f"{job.id}-checkpoint-{checkpoint.step}")
        else:
            written = job.outputs.download(given.output or job.id, only=given.paths or None)
    if given.json:
        say_json([str(path) for path in written])
        return 0
    say(*map(str, written))
    if not written:
        tell(f"{job.id} has left no files: it is {job.state}")
    return 0


@contextmanager
def _transferring(given: Given) -> Iterator[Client]:
    """Yields a client that shows what it sends and fetches. On stderr, because stdout is for scripts."""
    if not sys.stderr.isatty():
        yield client_of(given)
        return
    # Imported here, because scripts and pipes do not need rich.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    # Without redirection, because rich would send what the command prints on stdout to stderr.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bars:
        tasks: dict[str, TaskID] = {}

        def on_bytes(name: str, done: int, size: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(clean(name), total=size)
            bars.update(tasks[name], completed=done, visible=done < size)

        yield client_of(given, on_bytes=on_bytes)


def run_export(given: Given) -> int:
    job = find(client_of(given), given.job)
    written = job.export(given.output or f"{job.id}-export", checkpoint=given.checkpoint, merge=given.merge)
    say_json([str(path) for path in written]) if given.json else say(*map(str, written))
    return 0


def run_upload(given: Given) -> int:
    with _transferring(given) as client:
        for path in given.paths:
            kept = client.files.upload(path, tokenizer=given.tokenizer)
            if given.json:
                say_json(kept.model_dump(mode="json"))
                continue
            print(kept.id, flush=True)
            # On stderr, because a script may want only the id from stdout.
            if kept.report is not None:
                tell("\n  ".join([f"{path}: {headline(kept.report)}", *problems(kept.report)]))
    return 0


def run_files(given: Given) -> int:
    client = client_of(given)
    if given.delete:
        client.files.delete(given.delete)
        say_deleted(given, given.delete)
        return 0
    if given.file:
        return _show_rows(client.files.get(given.file), given)
    head, empty = ("FILE", "NAME", "ROWS", "BAD", "SIZE", "AGE"), "no file was uploaded yet; footplate upload does it"
    return show(given, client.files.list(), head, _file_row, least=("AGE", "SIZE"), cut=("FILE",), empty=empty)


def _file_row(one: UploadedFile) -> tuple[object, ...]:
    return one.id, one.name, one.rows, one.bad_rows, size(one.bytes), age(one.created_at)


def _show_rows(file: UploadedFile, given: Given) -> int:
    if given.json:
        say_json(file.model_dump(mode="json"))
    elif file.report is None:
        tell(f"{file.name} was uploaded before rows were checked")
    else:
        say(f"{file.name}: {headline(file.report)}", "")
        columns = map(column_cells, file.report.columns)
        table(COLUMN_HEADS, columns, least=("LONGEST", "MISSING"), empty="no column could be read")
        say(*problems(file.report))
    return 0


def run_diff(given: Given) -> int:
    client = client_of(given)
    a, b = _spec(client, given.a), _spec(client, given.b)
    differences = {
        pointer: (a.get(pointer), b.get(pointer)) for pointer in sorted({*a, *b}) if a.get(pointer) != b.get(pointer)
    }
    if given.json:
        say_json({pointer: {"a": value, "b": other} for pointer, (value, other) in differences.items()})
        return 0
    table(
        ("WHERE", given.a, given.b),
        ((p, _shown(x), _shown(y)) for p, (x, y) in differences.items()),
        cut=("WHERE", given.a, given.b),
        empty="no difference",
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
