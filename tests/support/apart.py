"""Runs processes that cannot see each other's folders, as if they were on two machines."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_HIDE = 'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit 1; shift; done; shift; exec "$@"'


def without(*folders: Path) -> list[str]:
    """Returns the beginning of a command line that hides these folders from the command after it.

    Files that the command writes there are on a private disk, which is deleted when the command ends. The command runs
    in the process that was started, and not in a child.
    """
    return ["unshare", "--mount", "sh", "-c", _HIDE, "apart", *map(str, folders), "--"]


def require_apart() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("nodes have mounts of their own, and there is no program `unshare` here")
    tried = subprocess.run([*without(Path("/mnt")), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"nodes have mounts of their own, which cannot be made here: {tried.stderr.strip()}")
