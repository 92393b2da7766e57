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


def snippets(page: str, language: str = "sh") -> list[str]:
    """Returns the snippets of a page, whose path is relative to docs/. A test runs `sh`; `bash` is only shown."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def paste(commands: list[str], folder: Path, url: str, **environment: str) -> str:
    """Runs the commands in a folder that has `.footplate` and `examples`, and returns what they print."""
    path = os.pathsep.join([str(folder_of_commands()), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=folder,
        env={**clean_environment(), "FOOTPLATE_URL": url, "PATH": path, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
