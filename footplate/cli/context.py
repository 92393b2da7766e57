"""Functions that the verbs share: common options, the client, the search for a job, and exit codes of errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from footplate.cli.text import clean, print_json, print_lines, print_message, table
from footplate.contract.errors import FootplateError
from footplate.errors import DownloadFailed, JobEnded, NotFound, ServiceError, Unreachable

if TYPE_CHECKING:
    from footplate import Client, Job

T = TypeVar("T", bound=BaseModel)
FAILED, USAGE, NOT_FOUND, UNREACHABLE = 1, 2, 3, 4
RETRIES = 2
"""The number of retries of a request. It is small because a person is waiting for the answer."""

Options = argparse.Namespace
Verbs = Any  # The result of add_subparsers, whose type is private in argparse.


class UsageError(FootplateError):
    code = "usage"
    title = "The command cannot be understood"


def add_verb(
    verbs: Verbs, name: str, run: Callable[[Options], int], help: str, *, default: Any = None, **settings: Any
) -> argparse.ArgumentParser:
    """Adds a verb with `--json`, `--url` and `--project`, which all verbs have. Their default is `default`."""
    description = f"{help[:1].upper()}{help[1:]}."
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=description, **settings)
    parser.add_argument("--json", action="store_true", default=default, help="print JSON, one object per line")
    help = "the service's address (default: FOOTPLATE_URL, the `up` in this folder, or http://127.0.0.1:8080)"
    parser.add_argument("--url", default=default, help=help)
    help = "the project to act in, for a key that is valid for every project (default: default)"
    parser.add_argument("--project", default=default, type=not_empty, help=help)
    parser.set_defaults(run=run)
    return parser


add_subcommand = partial(add_verb, default=argparse.SUPPRESS)
"""Adds a subcommand of a verb, such as `footplate keys create`. The verb's options may also stand before its name."""


JOB_HELP = "a job: its id, the beginning or end of its id, its name, or @last for the newest"


def add_job(parser: argparse.ArgumentParser, **settings: Any) -> None:
    parser.add_argument("job", metavar="JOB", type=not_empty, help=JOB_HELP, **settings)


def not_empty(text: str) -> str:
    """Parses a name. An empty one is refused: in `nodes --drain "$NODE"`, the variable is not set."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty")
    return text


def count(text: str) -> int:
    """Parses a limit, which is a whole number. 0 means no limit."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more; 0 means all")
    return int(text)


def require_one_of(options: Options, *names: str) -> None:
    """Raises UsageError if more than one of these options is used, because only one of them can take effect."""
    used_options = [name for name in names if getattr(options, name.lstrip("-").replace("-", "_").lower())]
    if len(used_options) > 1:
        raise UsageError(f"{' and '.join(used_options)} cannot be used together", hint="leave one of them out")


FILTERS = ("state", "tag", "name", "created_after", "created_before")


def add_filters(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--state", help="only jobs in this state, or in one of several states with commas")
    parser.add_argument("--tag", help="only jobs with this tag")
    parser.add_argument("--name", help="only jobs with this name")
    for option, relation in (("after", "since"), ("before", "before")):
        text = f"only jobs submitted {relation} this time, such as 2026-01-31T12:00:00Z"
        parser.add_argument(f"--created-{option}", metavar="TIME", help=text)


def filters_of(options: Options) -> Any:
    return {name: getattr(options, name) for name in FILTERS if getattr(options, name) is not None}


def client_of(options: Options, **settings: Any) -> Client:
    from footplate import Client

    return Client(options.url, project=options.project, **{"retries": RETRIES, **settings})


def add_changes(parser: argparse.ArgumentParser, help: str, *, metavar: str = "a.b=v") -> None:
    """Adds the option `--set`, whose values are collected in `changes`."""
    parser.add_argument(
        "--set", dest="changes", action="append", default=[], metavar=metavar, help=f"{help}; may be repeated"
    )


def show(
    options: Options,
    items: Iterable[T],
    head: Sequence[str],
    row: Callable[[T], Sequence[object]],
    empty_text: str,
    *,
    optional_columns: Sequence[str] = (),
    long_columns: Sequence[str] = (),
) -> int:
    """Prints resources as a table, or with --json as one JSON object per line."""
    if options.json:
        for item in items:
            print_json(item)
    else:
        table(head, map(row, items), empty_text, optional_columns=optional_columns, long_columns=long_columns)
    return 0


def print_result(options: Options, value: Any, *lines: str) -> int:
    """Prints the lines, or with --json the value. Returns the exit code 0."""
    print_json(value) if options.json else print_lines(*lines)
    return 0


def print_secret(options: Options, resource: BaseModel, secret: str, *messages: str) -> int:
    """Prints a secret alone on stdout, for scripts, and the messages on stderr. With --json prints the resource."""
    if options.json:
        print_json(resource)
        return 0
    print(secret, flush=True)
    for message in messages:
        print_message(message)
    return 0


def print_deleted(options: Options, name: str) -> int:
    return print_result(options, {"deleted": name}, f"{name} deleted")


def find_all(client: Client, words: Sequence[str]) -> list[Job]:
    """Returns the jobs that the words mean, each once. A wrong word raises an error before any job is changed."""
    jobs = [client.jobs.get(word) for word in words]
    return list({job.id: job for job in jobs}.values())


def sentence(error: FootplateError) -> str:
    """Returns the message of an error with its hint. If a spec has several problems, each has a line of its own."""
    lines = [str(problem).removeprefix("/: ") for problem in getattr(error, "problems", [])]
    if len(lines) > 1:
        return clean("\n  ".join([f"{len(lines)} problems", *lines]))
    phrases = lines or [error.message, error.hint or ""]
    if error.status >= 500 and (request := getattr(error, "request_id", "")):
        phrases.append(f"request id {request}")
    return clean("; ".join(phrase.rstrip(".") for phrase in phrases if phrase))


def exit_code(error: FootplateError) -> int:
    if isinstance(error, JobEnded):
        return FAILED
    if isinstance(error, NotFound):
        return NOT_FOUND
    if isinstance(error, Unreachable | ServiceError | DownloadFailed):
        return UNREACHABLE
    return USAGE
