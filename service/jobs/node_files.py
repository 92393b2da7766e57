"""Checks at POST whether any node has the files that a spec names below data:// and models://.

A node announces the folders of data:// and models:// by path, device and inode (`FileRoots`). If this process sees the
same folders, as in a set-up on one machine, it looks for the file itself. Otherwise the job is accepted, and its node
reports a missing file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path

from footplate.contract.errors import Problem, did_you_mean
from footplate.contract.files import ArgumentText
from footplate.contract.messages import BOOT_ID, FileRoot, FileRoots
from footplate.contract.rules import ROOTS

MOST_NAMES = 1000
"""The most names of a folder that are compared with a missing name, to suggest the most similar one."""


def missing(arguments: Sequence[ArgumentText], nodes: Sequence[FileRoots | None]) -> list[Problem]:
    """Returns a problem for each file that no node has. `nodes` holds None for a node that announces no folders.

    Returns [] if this process does not see the folders of every node.
    """
    if not all(_is_seen(node) for node in nodes):
        return []
    problems = []
    for argument in arguments:
        if not argument.text.startswith(ROOTS):
            continue
        scheme, _, name = argument.text.partition("://")
        roots = list(dict.fromkeys(node.data if scheme == "data" else node.models for node in nodes if node))
        if roots and not any(_is_there(root, name) for root in roots):
            upload = ", or upload it: POST /files" if scheme == "data" else ""
            hint = _nearest(Path(roots[0].path), name) or f"put it below {roots[0].path}{upload}"
            problems.append(Problem(argument.pointer, "file_missing", f"{argument.text[:200]!r} is on no node", hint))
    return problems


def seen_path(name: str, nodes: Sequence[FileRoots | None]) -> Path | None:
    """Returns the folder of a model below models://, if this process sees this folder on any node, else None."""
    scheme, _, folder = name.partition("://")
    if scheme != "models" or not folder or not {"", ".", ".."}.isdisjoint(folder.split("/")) or "\0" in folder:
        return None
    for node in nodes:
        if node is not None and _is_seen(node) and (path := Path(node.models.path, folder)).is_dir():
            return path
    return None


def _is_seen(node: FileRoots | None) -> bool:
    """Returns True if this process sees the folders that the node has announced."""
    return node is not None and node.machine == _machine() and _is_same(node.data) and _is_same(node.models)


@cache
def _machine() -> str:
    return BOOT_ID.read_text().strip()


def _is_same(root: FileRoot) -> bool:
    try:
        about = os.stat(root.anchor)
    except OSError:
        return False
    return (about.st_dev, about.st_ino) == (root.device, root.inode)


def _is_there(root: FileRoot, name: str) -> bool:
    """Returns False only if the file certainly does not exist."""
    path = Path(root.path, name.lstrip("/"))
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return any(letter in name for letter in "*?[") and _has_match(path)
    except OSError:
        return True
    return True


def _has_match(pattern: Path) -> bool:
    """Returns False only if certainly no file matches. A pattern over several folders is not checked here."""
    if any(letter in str(pattern.parent) for letter in "*?[") or "**" in pattern.name:
        return True
    try:
        return any(pattern.parent.glob(pattern.name))
    except (OSError, ValueError):
        return True


def _nearest(root: Path, name: str) -> str | None:
    folder = Path(root, name.lstrip("/")).parent.resolve()
    if not folder.is_relative_to(root.resolve()):
        return None
    try:
        with os.scandir(folder) as entries:
            return did_you_mean(Path(name).name[:80], [entry.name for entry in islice(entries, MOST_NAMES)])
    except OSError:
        return None
