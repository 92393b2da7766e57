"""The `footplate` command: one verb a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from footplate.cli.up import up

USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and gives its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["up"]:
        return up(words[1:])
    parser = argparse.ArgumentParser(prog="footplate", description="A job server for training.")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    verbs.add_parser("up", help="start everything on this machine (footplate up --help)")
    parser.parse_args(words)
    parser.print_help()
    return USAGE_ERROR
