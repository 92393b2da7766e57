"""Completion of the command's words with Tab, by argcomplete: verbs, options, and the ids and names of jobs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from footplate.cli.context import Options, Verbs, client_of
from footplate.cli.text import short
from footplate.contract.errors import FootplateError

MOST_JOBS = 100
"""The number of jobs whose ids and names are offered: the newest ones."""
JOBS = frozenset({"job", "jobs", "a", "b"})
"""The argparse names (`dest`) of the arguments that name a job."""


def add_verbs(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "completion", help="print the script with which a shell completes verbs, options and jobs"
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    parser.set_defaults(run=print_script)


def print_script(options: Options) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["footplate"], shell=options.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Prints the words that complete a line and exits, if the shell has called the command to complete one."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    for action in _arguments(parser):
        if action.dest in JOBS and not action.option_strings:
            action.completer = words_of_jobs  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def words_of_jobs(parsed_args: Options, **_: Any) -> list[str]:
    """Returns the ids and names of the newest jobs. Returns none if the service is unreachable."""
    try:
        client = client_of(parsed_args, retries=0, timeout=2.0)
        jobs = [job.info for job in islice(client.jobs.list(limit=MOST_JOBS), MOST_JOBS)]
    except FootplateError:
        return []
    names = dict.fromkeys(job.name for job in jobs if job.name and job.name.isprintable())
    return [*(["@last"] if jobs else []), *names, *(short(job.id) for job in jobs)]


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the arguments of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _arguments(subparser)
