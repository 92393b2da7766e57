"""The command line of `footplate up`, also run as `python -m footplate.local`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from footplate.contract.settings import expanded
from footplate.contract.variables import unknown
from footplate.local.processes import Failed
from footplate.local.up import Options, up


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="footplate up",
        description="Start everything on this machine: Redis, service, nodes. State stays in FOOTPLATE_HOME.",
        epilog="The FOOTPLATE_ settings apply. The options here override them.",
    )
    parser.add_argument("--nodes", type=_count, metavar="N", help="how many nodes to start (default 1)")
    parser.add_argument(
        "--port", type=_port, help="the port to listen on; 0 is any free port (default 8080, or any if that is in use)"
    )
    text = "print one JSON line once it is ready, and nothing else"
    parser.add_argument("--json", dest="as_json", action="store_true", help=text)
    text = "do not submit the toy job on the first start"
    parser.add_argument("--no-first-job", dest="first_job", action="store_false", help=text)
    options = parser.parse_args(namespace=Options(Path(), port=None))
    if problems := unknown(os.environ):
        # This is checked before any folder is made, because FOOTPLATE_HOME may be misspelt.
        print("\n".join(f"footplate: {sentence}" for sentence in problems), file=sys.stderr)
        return 2
    try:
        options.home = Path(expanded(os.environ.get("FOOTPLATE_HOME") or ".footplate")).absolute()
    except ValueError as error:
        print(f"footplate: FOOTPLATE_HOME: {error}", file=sys.stderr)
        return 2
    if options.port is None:
        options.port = _port_of_environment()
    try:
        return up(options)
    except Failed as error:
        print(f"footplate: {error}", file=sys.stderr)
        return 1


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes; 1 to 64 would work")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; 0 to 65535 would work, 0 being any free one")
    return int(text)


def _port_of_environment() -> int | None:
    """Returns the port that the operator has set, or None. Only the default may be replaced by a free port."""
    if not (text := os.environ.get("FOOTPLATE_PORT")):
        return None
    try:
        return _port(text)
    except argparse.ArgumentTypeError as error:
        raise SystemExit(f"footplate: FOOTPLATE_PORT: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
