"""The `footplate` command: its verbs, and its exit codes.

Exit codes: 0 ok · 1 the job failed · 2 usage · 3 not found · 4 unreachable · 130 Ctrl-C. An error is a sentence or two
on stderr, never a traceback of ours.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from pydantic import ValidationError

from footplate.cli import (
    change,
    cluster,
    completion,
    doctor,
    files,
    fork,
    keys,
    metrics,
    predict,
    show,
    submit,
    watch,
    webhooks,
)
from footplate.cli.context import UNREACHABLE, USAGE, exit_code, sentence
from footplate.cli.text import tell
from footplate.cli.up import up
from footplate.cli.watch import INTERRUPTED
from footplate.contract.errors import FootplateError, did_you_mean

PARTS = (
    submit,
    show,
    watch,
    metrics,
    files,
    change,
    fork,
    predict,
    cluster,
    keys,
    webhooks,
    doctor,
    completion,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["up"]:
        return up(words[1:])
    parser = make_parser()
    if words and (complaint := unknown_verb(parser, words[0])):
        tell(complaint)
        return USAGE
    options = parser.parse_args(words)
    if options.version:
        print(f"footplate {version('footplate')}")
        return 0
    if not hasattr(options, "run"):
        parser.print_help()
        return USAGE
    _prepare_output()
    return _run(options)


def _run(given: argparse.Namespace) -> int:
    try:
        code: int = given.run(given)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `footplate ls | head`: the reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FootplateError as error:
        tell(sentence(error))
        return exit_code(error)
    except OSError as error:
        tell(f"{error.filename or 'a file'}: {error.strerror or error}")
        return USAGE
    except ValidationError as error:
        tell(f"the service answers a {error.title} that this one does not understand; install its version of footplate")
        return UNREACHABLE


def unknown_verb(parser: argparse.ArgumentParser, word: str) -> str | None:
    """Returns what is wrong with the first word and the nearest verb, or None if the word is a verb or an option."""
    (verbs,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    if word in verbs or word.startswith("-"):
        return None
    hint = did_you_mean(word, verbs) or f"the verbs are {', '.join(verbs)}"
    return f"no verb is called {word!r}; {hint}"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="footplate", description="A job server for training.")
    parser.add_argument("--version", action="store_true", help="say which version this is")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    verbs.add_parser("up", help="start everything on this machine (footplate up --help)", add_help=False)
    for part in PARTS:
        part.add_verbs(verbs)
    return parser


def _prepare_output() -> None:
    """Replaces characters that a terminal cannot show by question marks, and logs the client's warnings on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    over_a_bar = "\r\033[K" if sys.stderr.isatty() else ""
    logging.basicConfig(format=f"{over_a_bar}footplate: %(message)s", level=logging.WARNING, stream=sys.stderr)
