"""Shows a bar for each file that is uploaded or downloaded, if stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from footplate.cli.context import Given, client_of
from footplate.cli.text import clean

if TYPE_CHECKING:
    from footplate import Client


@contextmanager
def transferring(given: Given) -> Iterator[Client]:
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
