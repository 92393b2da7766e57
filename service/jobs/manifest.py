"""The files of a checkpoint, from the manifest that was written when it was committed."""

from __future__ import annotations

import hashlib
import json
import re
from typing import IO, Any

from footplate.contract.body import has_more_values_than
from footplate.contract.bucket import stays_inside
from footplate.contract.errors import FootplateError, NotFound
from footplate.contract.layout import MANIFEST
from footplate.contract.resources.artifacts import CheckpointFile
from service.artifact_files import Store, about, exactly, open_below
from service.store import checkpoints
from service.store.row_types import CheckpointRow

MAX_MANIFEST_BYTES, MAX_FILES = 2 * 1024 * 1024, 10_000
"""Limits for a manifest, because users' code may write one. Reading one of 600,000 files took 7 s and 390 MB."""
VALUES_OF_A_FILE = 4
_SHA256 = re.compile(r"[0-9a-f]{64}")


class CheckpointDamaged(FootplateError):
    code = "checkpoint_damaged"
    status = 409
    title = "The checkpoint is not as it was committed"


def sealed(artifacts: Store, row: CheckpointRow) -> list[CheckpointFile]:
    """Returns the files of a checkpoint as its manifest lists them, and the manifest itself as the last one.

    Raises NotFound if the checkpoint was deleted, and CheckpointDamaged if its manifest is missing or was changed.
    """
    if row.status in checkpoints.GONE:
        raise NotFound(f"checkpoint {row.id}, of step {row.step}, was deleted: only its description is left")
    file = open_below(artifacts, f"{row.path}/{MANIFEST}")
    if file is None:
        raise _damaged(row, f"{MANIFEST} is missing")
    with file:
        if about(file).bytes > MAX_MANIFEST_BYTES:
            raise _damaged(row, f"{MANIFEST} has more than {MAX_MANIFEST_BYTES // 2**20} MiB")
        text = b"".join(exactly(file, about(file).bytes, MANIFEST))
    digest = hashlib.sha256(text).hexdigest()
    if row.manifest_sha256 not in ("", digest):
        raise _damaged(row, f"{MANIFEST} is not the one that was committed (its sha256 differs)")
    return [*_files(text, row), CheckpointFile(path=MANIFEST, bytes=len(text), sha256=digest)]


def opened(artifacts: Store, row: CheckpointRow, sealed_file: CheckpointFile) -> IO[bytes]:
    """Opens a file of a checkpoint. Raises CheckpointDamaged if the file is missing or has another size.

    The content is not verified here, because the client that downloads the file knows its sha256.
    """
    file = open_below(artifacts, f"{row.path}/{sealed_file.path}")
    if file is None:
        raise _damaged(row, f"{sealed_file.path} is missing")
    size = about(file).bytes
    if size != sealed_file.bytes:
        file.close()
        raise _damaged(row, f"{sealed_file.path} has {size} bytes, and was written with {sealed_file.bytes}")
    return file


def _files(text: bytes, row: CheckpointRow) -> list[CheckpointFile]:
    """Parses a manifest and checks every value, because users' code in training may have written the manifest."""
    if has_more_values_than(VALUES_OF_A_FILE * MAX_FILES, text):
        raise _damaged(row, f"{MANIFEST} names more than {MAX_FILES:,} files")
    try:
        document: dict[str, dict[str, Any]] = json.loads(text)["files"]
        files = [
            CheckpointFile.model_validate(
                {"path": path, "bytes": about["bytes"], "sha256": about["sha256"]}, strict=True
            )
            for path, about in sorted(document.items())
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(row, f"{MANIFEST} cannot be read") from error
    for file in files:
        if not (file.bytes >= 0 and _SHA256.fullmatch(file.sha256) and stays_inside(file.path)):
            raise _damaged(row, f"{MANIFEST} has no valid path, size or sha256 for {file.path[:100]!r}")
    return files


def _damaged(row: CheckpointRow, problem: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"checkpoint {row.id}, of step {row.step}: {problem}",
        hint="use an older checkpoint; the job's next attempt skips damaged checkpoints by itself",
    )
