"""Runs processes that cannot see each other's folders, as if they were on two machines."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_HIDE = 'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit 1; shift; done; shift; exec "$@"'


def without(*folders: Path) -> list[str]:
    """Returns words that hide these folders from the command behind them.

    The command's writes there go to a disk of its own, which ends with the command. The process is still the one that
    was started.
    """
    return ["unshare", "--mount", "sh", "-c", _HIDE, "apart", *map(str, folders), "--"]


def require_apart() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("nodes have mounts of their own, and there is no program `unshare` here")
    tried = subprocess.run([*without(Path("/mnt")), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"nodes have mounts of their own, which cannot be made here: {tried.stderr.strip()}")
