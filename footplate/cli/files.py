"""The verbs `checkpoints`, `download`, `export`, `upload`, `files` and `diff`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.cli.context import (
    Options,
    UsageError,
    Verbs,
    add_job,
    add_verb,
    client_of,
    not_empty,
    print_deleted,
    print_result,
    require_one_of,
    show,
)
from footplate.cli.text import age, clean, print_json, print_lines, print_message, size, table
from footplate.errors import NotFound
from footplate.sdk.row_reports import COLUMN_HEADS, column_cells, headline, problems

if TYPE_CHECKING:
    from footplate import Client
    from footplate.sdk.blocking import SavedCheckpoint
    from footplate.sdk.models import UploadedFile


JOB_FILE = ".footplate-job"
"""The file in a download folder that names the job, or its checkpoint or export, whose files were downloaded there."""


def add_verbs(verbs: Verbs) -> None:
    checkpoints = add_verb(
        verbs, "checkpoints", run_checkpoints, "list the checkpoints of a job, or pin, unpin or delete one"
    )
    add_job(checkpoints)
    actions = checkpoints.add_mutually_exclusive_group()
    for option, text in (
        ("pin", "keep this checkpoint, even beyond save_total_limit"),
        ("unpin", "no longer pin this checkpoint"),
        ("delete", "delete this checkpoint, and print how many bytes that frees"),
    ):
        actions.add_argument(f"--{option}", metavar="CHECKPOINT", type=not_empty, help=f"{text}: an id, latest or best")
    download = add_verb(verbs, "download", run_download, "download a job's outputs: model, metrics and spec")
    add_job(download)
    download.add_argument("paths", metavar="PATH", nargs="*", help="only these files (default: all)")
    download.add_argument(
        "--checkpoint", type=not_empty, help="download this checkpoint instead: an id, latest or best"
    )
    download.add_argument("-o", "--output", help="the folder to write to (default: a new folder with the job's id)")
    export = add_verb(verbs, "export", run_export, "write a job's model, tokenizer and card to a folder")
    add_job(export)
    export.add_argument(
        "--checkpoint", metavar="C", type=not_empty, help="latest, best or an id (default: the job's final model)"
    )
    export.add_argument("--merge", action="store_true", help="merge the adapters into the weights")
    export.add_argument(
        "-o", "--output", metavar="FOLDER", help="the folder to write to (default: one with the job's id)"
    )
    upload = add_verb(verbs, "upload", run_upload, "upload data files, and print their ids, which specs can name")
    upload.add_argument("paths", metavar="PATH", nargs="+", type=not_empty, help="JSON lines, CSV, Parquet or text")
    upload.add_argument(
        "--tokenizer", metavar="models://NAME", help="count the tokens of all texts with this tokenizer"
    )
    files = add_verb(verbs, "files", run_files, "list uploaded files, or show one file's columns and bad rows")
    files.add_argument(
        "file", metavar="FILE", nargs="?", type=not_empty, help="show the columns and the bad rows of this file"
    )
    files.add_argument("--delete", metavar="FILE", type=not_empty, help="delete this file")
    diff = add_verb(verbs, "diff", run_diff, "show the differences between the effective specs of two jobs")
    diff.add_argument("a", metavar="A", type=not_empty, help="the first job")
    diff.add_argument("b", metavar="B", type=not_empty, help="the second job")


def run_checkpoints(options: Options) -> int:
    job_checkpoints = client_of(options).jobs.get(options.job).checkpoints
    if options.delete:
        checkpoint = job_checkpoints.get(options.delete)
        freed_bytes = checkpoint.delete()
        value = {"id": checkpoint.id, "frees_bytes": freed_bytes}
        return print_result(options, value, f"{checkpoint.id} will be deleted, which frees {size(freed_bytes)}")
    if options.pin:
        checkpoints: Sequence[SavedCheckpoint] = [job_checkpoints.get(options.pin).pin()]
    elif options.unpin:
        checkpoints = [job_checkpoints.get(options.unpin).unpin()]
    else:
        checkpoints = job_checkpoints.list()
    head = ("CHECKPOINT", "STEP", "ATTEMPT", "STATUS", "BEST", "PINNED", "SIZE", "AGE")
    return show(options, checkpoints, head, _checkpoint_row, "the job has saved no checkpoint yet")


def _checkpoint_row(checkpoint: SavedCheckpoint) -> tuple[object, ...]:
    best, pinned = "best" if checkpoint.is_best else "", "pinned" if checkpoint.pinned else ""
    facts = checkpoint.id, checkpoint.step, checkpoint.attempt, checkpoint.status
    return *facts, best, pinned, size(checkpoint.bytes), age(checkpoint.created_at)


def run_download(options: Options) -> int:
    if options.checkpoint and options.paths:
        raise UsageError("a checkpoint is always downloaded completely", hint="leave out the paths, or --checkpoint")
    with _transferring(options) as client:
        job = client.jobs.get(options.job)
        if options.checkpoint:
            checkpoint = job.checkpoints.get(options.checkpoint)
            folder = Path(options.output or f"{job.id}-checkpoint-{checkpoint.step}")
            _mark(folder, f"checkpoint {checkpoint.id} of {job.id}", job.id)
            paths = checkpoint.download(folder)
        else:
            folder = Path(options.output or job.id)
            outputs = {output.path for output in job.outputs.list()}
            if outputs and outputs.issuperset(options.paths):
                _mark(folder, job.id, job.id)
            paths = job.outputs.download(folder, only=options.paths or None)
    if not (paths or options.json):
        print_message(f"{job.id} has no outputs; its state is {job.state}")
    return print_result(options, [str(path) for path in paths], *map(str, paths))


def _mark(folder: Path, source: str, job: str) -> None:
    """Marks the folder with the source of its files, before the first of them is written.

    Raises UsageError if the folder has files of another source, because both would be mixed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / JOB_FILE
    present_source = mark.read_text(errors="replace").strip() if mark.exists() else ""
    # A folder with a mark alone is that of an export that failed.
    if present_source not in ("", source) and len(os.listdir(folder)) > 1:
        raise UsageError(
            f"{folder} already holds files of {present_source[:120]}", hint=f"name another folder: -o {folder}/{job}"
        )
    mark.write_text(f"{source}\n")


@contextmanager
def _transferring(options: Options) -> Iterator[Client]:
    """Yields a client that shows the progress of uploads and downloads on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield client_of(options)
        return
    # Imported here, because scripts and pipes do not need rich.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    # Without redirection, because rich would send the command's standard output to stderr.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bars:
        tasks: dict[str, TaskID] = {}

        def on_bytes(name: str, done_bytes: int, size: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(clean(name), total=size)
            bars.update(tasks[name], completed=done_bytes, visible=done_bytes < size)

        yield client_of(options, on_bytes=on_bytes)


def run_export(options: Options) -> int:
    job = client_of(options).jobs.get(options.job)
    checkpoint = options.checkpoint
    if checkpoint:
        with suppress(NotFound):  # Of a session, the service exports a checkpoint of the job that it serves.
            checkpoint = job.checkpoints.get(checkpoint).id
    folder = Path(options.output or f"{job.id}-export")
    kind = "merged export" if options.merge else "export"
    _mark(folder, f"the {kind} of {checkpoint or 'the final model'} of {job.id}", job.id)
    print_message("a job on a node writes the files; `footplate queue` says why it waits, if it does")
    paths = job.export(folder, checkpoint=checkpoint, merge=options.merge)
    return print_result(options, [str(path) for path in paths], *map(str, paths))


def run_upload(options: Options) -> int:
    with _transferring(options) as client:
        for path in options.paths:
            file = client.files.upload(path, tokenizer=options.tokenizer)
            if options.json:
                print_json(file)
                continue
            print(file.id, flush=True)
            # On stderr, because a script may want only the id from stdout.
            if file.report is not None:
                print_message("\n  ".join([f"{path}: {headline(file.report)}", *problems(file.report)]))
    return 0


def run_files(options: Options) -> int:
    require_one_of(options, "FILE", "--delete")
    client = client_of(options)
    if options.delete:
        client.files.delete(options.delete)
        return print_deleted(options, options.delete)
    if options.file:
        return _show_rows(client.files.get(options.file), options)
    head, empty_text = ("FILE", "NAME", "ROWS", "BAD", "SIZE", "AGE"), "no file was uploaded yet; use footplate upload"
    rows = client.files.list()
    return show(options, rows, head, _file_row, empty_text, optional_columns=("AGE", "SIZE"), long_columns=("FILE",))


def _file_row(file: UploadedFile) -> tuple[object, ...]:
    return file.id, file.name, file.rows, file.bad_rows, size(file.bytes), age(file.created_at)


def _show_rows(file: UploadedFile, options: Options) -> int:
    if options.json:
        print_json(file)
    elif file.report is None:
        print_message(f"{file.name} has no report, because it was uploaded to an older version of the service")
    else:
        print_lines(f"{file.name}: {headline(file.report)}", "")
        columns = map(column_cells, file.report.columns)
        table(COLUMN_HEADS, columns, optional_columns=("LONGEST", "MISSING"), empty_text="no column could be read")
        print_lines(*problems(file.report))
    return 0


def run_diff(options: Options) -> int:
    client = client_of(options)
    first_spec, second_spec = _spec(client, options.a), _spec(client, options.b)
    differences = {
        pointer: {"a": first_spec.get(pointer), "b": second_spec.get(pointer)}
        for pointer in sorted({*first_spec, *second_spec})
        if first_spec.get(pointer) != second_spec.get(pointer)
    }
    if options.json:
        print_json(differences)
        return 0
    table(
        ("WHERE", options.a, options.b),
        ((pointer, *map(_diff_cell, values.values())) for pointer, values in differences.items()),
        long_columns=("WHERE", options.a, options.b),
        empty_text="no difference",
    )
    return 0


def _spec(client: Client, word: str) -> dict[str, Any]:
    return dict(_leaves("", client.jobs.get(word).spec()))


def _leaves(pointer: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from _leaves(f"{pointer}/{name}", child)
    else:
        yield pointer, value


def _diff_cell(value: Any) -> str:
    return "-" if value is None else str(value)
