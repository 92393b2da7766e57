"""Resources whose files are in the artifact store: checkpoints, outputs, bundles and uploaded files."""

from __future__ import annotations

from typing import Annotated, Literal

from footplate.contract.fields import Json, Known, Resource


class Checkpoint(Resource):
    id: str
    attempt: int
    step: int
    no: int
    status: str
    """The status: committed, corrupt, deleting or deleted."""
    bytes: int
    files: int
    path: str
    manifest_sha256: str
    metrics: Json
    is_best: bool
    pinned: bool
    """The job's limits on checkpoints do not delete this one."""
    created_at: str


class CheckpointList(Resource):
    data: tuple[Checkpoint, ...]
    next_cursor: str | None


class DeletedCheckpoint(Checkpoint):
    frees_bytes: int
    """The bytes that are free once the folder is deleted, which happens soon. 0: a deletion was under way already."""


class CheckpointFile(Resource):
    path: str
    bytes: int
    sha256: str
    """The hash of the file as it was when the checkpoint was committed."""


class CheckpointFileList(Resource):
    checkpoint: str
    """The checkpoint's id, also where the address says `latest` or `best`."""
    data: tuple[CheckpointFile, ...]
    next_cursor: str | None


class Output(Resource):
    """One file that a job left behind."""

    path: str
    bytes: int
    modified_at: str


class OutputList(Resource):
    data: tuple[Output, ...]
    left_out: int
    """The number of files whose names are not UTF-8. No address can name them."""
    next_cursor: str | None


class BundleFile(Resource):
    path: str
    bytes: int


class Bundle(Resource):
    """A zip of a user's own code, as the service keeps it."""

    sha256: str
    """A spec names the bundle by this hash, as `code.bundle`."""
    bytes: int
    unpacked_bytes: int
    files: tuple[BundleFile, ...]
    created_at: str


class BundleList(Resource):
    data: tuple[Bundle, ...]
    next_cursor: str | None


class File(Resource):
    """An uploaded file of rows."""

    id: str
    """A spec names the file by this id, under `data`."""
    name: str
    """The name of the first upload of these bytes."""
    kind: Annotated[str, Known(Literal["jsonl", "csv", "tsv", "parquet"])]
    bytes: int
    sha256: str
    created_at: str
    created_by: str | None


class FileList(Resource):
    data: tuple[File, ...]
    next_cursor: str | None
