"""The context of every verb: a client, the job that a word means, and the end of a command by an error."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from footplate.cli.text import clean, say, say_json, table
from footplate.contract.errors import FootplateError

if TYPE_CHECKING:
    from footplate import Client, Job

T = TypeVar("T", bound=BaseModel)
FAILED, USAGE, NOT_FOUND, UNREACHABLE = 1, 2, 3, 4
RETRIES = 2
"""Few retries, because a person waits for the answer."""

Given = argparse.Namespace
Verbs = Any  # The type of add_subparsers' result is private in argparse.


class UsageError(FootplateError):
    code = "usage"
    title = "The command cannot be understood"


class NothingThere(FootplateError):
    code = "not_found"
    title = "Not found"


def add_verb(verbs: Verbs, name: str, run: Callable[[Given], int], help: str, **more: Any) -> argparse.ArgumentParser:
    """Adds a verb with the options that all verbs have."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=_sentence(help), **more)
    _add_options(parser, json=False, url=None)
    parser.set_defaults(run=run)
    return parser


def add_part(parts: Verbs, name: str, run: Callable[[Given], int], help: str) -> argparse.ArgumentParser:
    """Adds a part of a verb, such as `footplate keys create`.

    The verb's options may stand before the part's name, too.
    """
    parser: argparse.ArgumentParser = parts.add_parser(name, help=help, description=_sentence(help))
    _add_options(parser, json=argparse.SUPPRESS, url=argparse.SUPPRESS)
    parser.set_defaults(run=run)
    return parser


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _add_options(parser: argparse.ArgumentParser, *, json: Any, url: Any) -> None:
    parser.add_argument("--json", action="store_true", default=json, help="answer in JSON")
    help = "where the service is; else FOOTPLATE_URL, else the `up` in this folder, else http://127.0.0.1:8080"
    parser.add_argument("--url", default=url, help=help)


JOB_HELP = "an id, its beginning or end where that is unique, a unique name, or @last"


def add_job(parser: argparse.ArgumentParser, **more: Any) -> None:
    parser.add_argument("job", metavar="JOB", help=JOB_HELP, **more)


def count(text: str) -> int:
    """Parses an option that is a number of things."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more; 0 is all")
    return int(text)


FILTERS = ("state", "tag", "name", "created_after", "created_before")


def add_filters(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--state", help="only in this state, or in several with commas")
    parser.add_argument("--tag", help="only with this tag")
    parser.add_argument("--name", help="only of this name")
    for option, how in (("after", "since"), ("before", "before")):
        text = f"only those submitted {how} this moment, as 2026-01-31T12:00:00Z"
        parser.add_argument(f"--created-{option}", metavar="TIME", help=text)


def filters_of(given: Given) -> Any:
    return {name: getattr(given, name) for name in FILTERS if getattr(given, name) is not None}


def client_of(given: Given, **more: Any) -> Client:
    from footplate import Client

    return Client(given.url, **{"retries": RETRIES, **more})


def add_changes(parser: argparse.ArgumentParser, help: str, *, metavar: str = "a.b=v") -> None:
    """Adds `--set`, which may be repeated."""
    parser.add_argument(
        "--set", dest="changes", action="append", default=[], metavar=metavar, help=f"{help}; may be repeated"
    )


def show(
    given: Given,
    items: Iterable[T],
    head: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    empty: str,
    least: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> int:
    """Prints resources as a table, or with --json one per line."""
    if given.json:
        for item in items:
            say_json(item.model_dump(mode="json"))
    else:
        table(head, map(row, items), empty=empty, least=least, cut=cut)
    return 0


def say_deleted(given: Given, name: str) -> None:
    say_json({"deleted": name}) if given.json else say(f"{name} deleted")


def find(client: Client, word: str) -> Job:
    """Returns the job that a word means. `@last` is the newest job."""
    if word != "@last":
        return client.jobs.get(word)
    for job in client.jobs.list(limit=1):
        return job
    raise NothingThere("there is no job yet", hint="footplate submit makes one")


def find_all(client: Client, words: Sequence[str]) -> list[Job]:
    """Returns all jobs, so that a wrong word is reported before anything is done to the first."""
    return [find(client, word) for word in words]


def sentence(error: FootplateError) -> str:
    """Returns what happened and what would work. Each problem of a body has a line of its own."""
    problems = getattr(error, "problems", [])
    lines = [
        (f"{problem.pointer}: " if problem.pointer else "")
        + problem.detail
        + (f" ({problem.hint})" if problem.hint else "")
        for problem in problems
    ]
    if len(lines) > 1:
        return clean("\n  ".join([f"{len(lines)} problems", *lines]))
    parts = lines or [error.message, error.hint or ""]
    if error.status >= 500 and (request := getattr(error, "request_id", "")):
        parts.append(f"request id {request}")
    return clean("; ".join(part.rstrip(".") for part in parts if part))


def exit_code(error: FootplateError) -> int:
    from footplate import errors

    if isinstance(error, errors.JobEnded):
        return FAILED
    if isinstance(error, errors.NotFound | NothingThere):
        return NOT_FOUND
    if isinstance(error, errors.Unreachable | errors.ServiceError | errors.DownloadFailed):
        return UNREACHABLE
    return USAGE
