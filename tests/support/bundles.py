"""Packs bundles of users' code."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from footplate.contract import layout


def packed(files: Mapping[str, str | bytes]) -> bytes:
    """Returns an archive of these files, which has the same bytes for the same files."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        for name, text in files.items():
            content.writestr(zipfile.ZipInfo(name), text)
    return archive.getvalue()


def store_bundle(artifacts: Path, files: Mapping[str, str | bytes]) -> str:
    """Puts a bundle into the artifact store, as the service keeps it, and returns its sha256."""
    archive = packed(files)
    sha = sha256(archive).hexdigest()
    file = artifacts / layout.bundle_file(sha)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(archive)
    return sha
