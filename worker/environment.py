"""What one job finds in its environment beside the node's own: what it asks for, as far as this node lets it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from contract.environment import refused_env, unknown_secrets
from contract.errors import InvalidSpec
from worker.scratch import remove

EXTENSIONS = "extensions"
"""In a node's folder: what bundles have built, each below its own hash, beside the files that it was built of."""
UNUSED_SECONDS = 30 * 86_400


def asked_for(spec: Mapping[str, Any], allowed: str, secrets: Mapping[str, str], root: Path) -> dict[str, str]:
    """Its `env`, its secrets, and where its bundle's extensions lie: those of this Python and this torch. InvalidSpec
    for what is not to be had here: the service has looked already, by its own settings and at all nodes."""
    env: dict[str, str] = spec.get("env") or {}
    names: list[str] = spec.get("secrets") or []
    if problems := [*refused_env(env, allowed), *unknown_secrets(names, secrets)]:
        raise InvalidSpec(problems)
    found = {**env, **{name: secrets[name] for name in names}}
    if code := spec.get("code"):
        found["TORCH_EXTENSIONS_DIR"] = str(_extensions(root, str(code["bundle"])) / _built_for())
    return found


def _extensions(root: Path, sha256: str) -> Path:
    folder = root / EXTENSIONS / sha256
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        # Used now, whatever it may find there.
        folder.touch()
    return folder


@cache
def _built_for() -> str:
    """Python's tag and torch's version, which is read and not imported: what was built for another loads nowhere."""
    return f"{sys.implementation.cache_tag}-torch-{version('torch')}"


def forget_unused(root: Path) -> None:
    """At a node's start: what no job has asked for in a month is built again when one does."""
    for folder in (root / EXTENSIONS).glob("*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > UNUSED_SECONDS:
                remove(folder)
