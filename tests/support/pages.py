"""Runs the shell snippets of a docs page, as a reader pastes them one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.processes import REPOSITORY, clean_environment
from tests.support.template import folder_of_commands

DOCS = REPOSITORY / "docs"
SQLITE, POSTGRES = slice(1), slice(-1, None)
"""The snippet of a section for each kind of database: the first for SQLite, and the last for PostgreSQL."""


def snippets(page: str, language: str = "sh", section: str = "") -> list[str]:
    """Returns the snippets of a page, whose path is relative to docs/, or of one of its sections.

    Tests run snippets in the language `sh`. Snippets in `bash` are not run.
    """
    text = (DOCS / page).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def paste(commands: list[str], folder: Path, url: str = "", path: str = "", **environment: str) -> str:
    """Runs the commands in a folder that has `.footplate` and `examples`, and returns what they print."""
    places = [str(folder_of_commands()), str(Path(sys.executable).parent), path, os.environ["PATH"]]
    own = {"FOOTPLATE_URL": url, "PATH": os.pathsep.join(filter(None, places)), "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=folder,
        env={**clean_environment(), **own, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]
    return process.stdout
