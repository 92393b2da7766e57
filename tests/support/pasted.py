"""Finds the commands of docs/guides/backup-and-upgrade.md, and pastes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.processes import REPOSITORY

PAGE = (REPOSITORY / "docs/guides/backup-and-upgrade.md").read_text()
SQLITE, POSTGRES = 0, 1
"""Positions of a section's blocks, if it has one for each database."""


def commands(section: str, which: int = 0) -> str:
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return blocks[which] if len(blocks) > 1 else blocks[0]


def paste(block: str, *, path: str = "", **environment: str) -> None:
    """Pastes a block into a shell that stops at the first error. Its `python` is the one that runs the tests."""
    places = [str(Path(sys.executable).parent), path, os.environ["PATH"]]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": os.pathsep.join(filter(None, places)), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
