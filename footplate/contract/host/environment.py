"""What one job finds in its environment beside the node's own: what it asks for, as far as this node lets it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from footplate.contract.environment import refused_env, unknown_secrets
from footplate.contract.errors import InvalidSpec
from footplate.contract.host.scratch import remove
from footplate.contract.host.user import User, make_room
from footplate.contract.strategies import needs_a_launcher

EXTENSIONS = "extensions"
"""In a node's folder: what bundles have built, each below its own hash, beside the files that it was built of."""
PLACE = "TORCH_EXTENSIONS_DIR"
UNUSED_SECONDS = 30 * 86_400


def asked_for(
    spec: Mapping[str, Any], allowed: str, secrets: Mapping[str, str], root: Path, user: User | None = None
) -> dict[str, str]:
    """Its `env`, its secrets, and where what it builds lies: for this Python and this torch, as this user. InvalidSpec
    for what is not to be had here: the service has looked already, by its own settings and at all nodes."""
    env: dict[str, str] = spec.get("env") or {}
    names: list[str] = spec.get("secrets") or []
    if problems := [*refused_env(env, allowed), *unknown_secrets(names, secrets)]:
        raise InvalidSpec(problems)
    found = {**env, **{name: secrets[name] for name in names}}
    if (whose := whose_extensions(spec)) is not None:
        found[PLACE] = str(_extensions(root, whose, user) / built_for())
    return found


def whose_extensions(spec: Mapping[str, Any]) -> str | None:
    """Whose extensions the job builds, or finds: its bundle's, or DeepSpeed's. None: it builds none."""
    if code := spec.get("code"):
        return str(code["bundle"])
    return "deepspeed" if needs_a_launcher(spec.get("resources") or {}) else None


def _extensions(root: Path, whose: str, user: User | None) -> Path:
    folder = root / EXTENSIONS / whose
    with suppress(OSError):
        builder = os.geteuid() if user is None else user.uid
        if folder.exists() and folder.lstat().st_uid != builder:
            # Built as somebody else, before training had this user: he could not add to it, and it may have been any.
            remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if user is not None:
            make_room(root, PurePosixPath(EXTENSIONS, whose), user)
        # Used now, whatever it may find there.
        folder.touch()
    return folder


@cache
def built_for() -> str:
    """Python's tag and torch's version, which is read and not imported: what was built for another loads nowhere."""
    return f"{sys.implementation.cache_tag}-torch-{version('torch')}"


def forget_unused(root: Path) -> None:
    """At a node's start: what no job has asked for in a month is built again when one does."""
    for folder in (root / EXTENSIONS).glob("*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > UNUSED_SECONDS:
                remove(folder)
