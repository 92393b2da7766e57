"""Makes the environment variables of a job: `env` and secrets of its spec, and the folder of compiled extensions."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from footplate.contract.environment import refused_env, unknown_secrets
from footplate.contract.errors import InvalidSpec
from footplate.contract.host.scratch import remove
from footplate.contract.host.user import User, make_writable_folder
from footplate.contract.spec import JobSpec

EXTENSIONS = "extensions"
"""The folder of compiled extensions, in a node's folder. Each bundle has a subfolder, named by the bundle's hash, with
its extensions and a copy of its sources."""
EXTENSIONS_VARIABLE = "TORCH_EXTENSIONS_DIR"
UNUSED_SECONDS = 30 * 86_400


def job_environment(
    spec: JobSpec, allowed: str, secrets: Mapping[str, str], root: Path, user: User | None = None
) -> dict[str, str]:
    """Returns the job's `env`, its secrets, and the folder for its extensions, which belongs to `user`.

    Raises InvalidSpec if this node does not allow a variable, or lacks a secret. The service has checked that before,
    but by its own settings and for all nodes together.
    """
    if problems := [*refused_env(spec.env, allowed), *unknown_secrets(spec.secrets, secrets)]:
        raise InvalidSpec(problems)
    variables = {**spec.env, **{name: secrets[name] for name in spec.secrets}}
    if (owner := extensions_owner(spec)) is not None:
        variables[EXTENSIONS_VARIABLE] = str(_extensions(root, owner, user) / built_for())
    return variables


def extensions_owner(spec: JobSpec) -> str | None:
    """Returns the name of the folder for the job's extensions: its bundle's sha256, or `deepspeed`.

    Returns None for a job that builds no extensions.
    """
    if spec.code is not None:
        return spec.code.bundle
    return "deepspeed" if spec.resources.needs_a_launcher else None


def _extensions(root: Path, owner: str, user: User | None) -> Path:
    folder = root / EXTENSIONS / owner
    with suppress(OSError):
        builder = os.geteuid() if user is None else user.uid
        if folder.exists() and folder.lstat().st_uid != builder:
            # Training ran as another user before. The folder is removed, because the present user could not write to
            # it, and code of any job may have written to it.
            remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if user is not None:
            make_writable_folder(root, PurePosixPath(EXTENSIONS, owner), user)
        # The folder's modification time is the time of its last use, even if no file in it changes.
        folder.touch()
    return folder


@cache
def built_for() -> str:
    """Returns a folder name for extensions built with this Python and torch. Other versions cannot load them."""
    return f"{sys.implementation.cache_tag}-torch-{version('torch')}"


def forget_unused(root: Path) -> None:
    """Removes extensions that no job has used for 30 days. A later job builds them again."""
    for folder in (root / EXTENSIONS).glob("*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > UNUSED_SECONDS:
                remove(folder)
