"""What lies in the artifact store: checkpoints, outputs, bundles, files."""

from __future__ import annotations

from typing import Literal

from service.api.shapes.shape import Json, Shape


class Checkpoint(Shape):
    id: str
    attempt: int
    step: int
    no: int
    status: str
    """committed, corrupt, deleting or deleted."""
    bytes: int
    files: int
    path: str
    manifest_sha256: str
    metrics: Json
    is_best: bool
    pinned: bool
    """It stays, whatever the job's limits say."""
    created_at: str


class CheckpointList(Shape):
    data: list[Checkpoint]
    next_cursor: str | None


class DeletedCheckpoint(Checkpoint):
    frees_bytes: int
    """Once its folder is gone, which is soon. 0: it was going already."""


class CheckpointFile(Shape):
    path: str
    bytes: int
    sha256: str
    """Of what was written when the checkpoint was committed."""


class CheckpointFileList(Shape):
    checkpoint: str
    """Its id: what `latest` and `best` meant."""
    data: list[CheckpointFile]
    next_cursor: str | None


class Output(Shape):
    path: str
    bytes: int
    modified_at: str


class OutputList(Shape):
    data: list[Output]
    left_out: int
    """Files whose names are not UTF-8, so that nobody could ask for them."""
    next_cursor: str | None


class BundleFile(Shape):
    path: str
    bytes: int


class Bundle(Shape):
    sha256: str
    """What a spec's `code.bundle` says."""
    bytes: int
    unpacked_bytes: int
    files: list[BundleFile]
    created_at: str


class BundleList(Shape):
    data: list[Bundle]
    next_cursor: str | None


class File(Shape):
    id: str
    """What a spec's data says."""
    name: str
    """As it first came."""
    kind: Literal["jsonl", "csv", "tsv", "parquet"]
    bytes: int
    sha256: str
    created_at: str
    created_by: str | None


class FileList(Shape):
    data: list[File]
    next_cursor: str | None
