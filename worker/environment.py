"""What one job finds in its environment beside the node's own: what it asks for, as far as this node lets it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from contract.environment import refused_env, unknown_secrets
from contract.errors import InvalidSpec

EXTENSIONS = "extensions"
"""In a node's folder: what bundles have built, each below its own hash."""
UNUSED_SECONDS = 30 * 86_400


def asked_for(spec: Mapping[str, Any], allowed: str, secrets: Mapping[str, str], root: Path) -> dict[str, str]:
    """Its `env`, its secrets, and where its bundle's extensions lie. InvalidSpec for what is not to be had here:
    the service has looked already, by its own settings and at all nodes."""
    env: dict[str, str] = spec.get("env") or {}
    names: list[str] = spec.get("secrets") or []
    if problems := [*refused_env(env, allowed), *unknown_secrets(names, secrets)]:
        raise InvalidSpec(problems)
    found = {**env, **{name: secrets[name] for name in names}}
    if code := spec.get("code"):
        found["TORCH_EXTENSIONS_DIR"] = str(_extensions(root, str(code["bundle"])))
    return found


def _extensions(root: Path, sha256: str) -> Path:
    folder = root / EXTENSIONS / sha256
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        # Used now, whatever it may find there.
        folder.touch()
    return folder


def forget_unused(root: Path) -> None:
    """At a node's start: what no job has asked for in a month is built again when one does."""
    for folder in (root / EXTENSIONS).glob("*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > UNUSED_SECONDS:
                rmtree(folder, ignore_errors=True)
