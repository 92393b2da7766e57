"""Resources whose files are in the artifact store: checkpoints, outputs, bundles and uploaded files."""

from __future__ import annotations

from typing import Annotated, Literal

from footplate.contract.fields import Json, OpenEnum, Page, Resource


class Checkpoint(Resource):
    id: str
    attempt: int
    step: int
    no: int
    status: str
    """The checkpoint's status: committed, corrupt, deleting or deleted."""
    bytes: int
    files: int
    path: str
    manifest_sha256: str
    metrics: Json
    is_best: bool
    pinned: bool
    """True if the checkpoint is kept although the job's limits would delete it."""
    created_at: str


class CheckpointList(Page[Checkpoint]): ...


class DeletedCheckpoint(Checkpoint):
    frees_bytes: int
    """The bytes that deleting the checkpoint's folder will free. 0: an earlier request already deletes the folder."""


class CheckpointFile(Resource):
    path: str
    bytes: int
    sha256: str
    """The hash of the file as it was when the checkpoint was committed."""


class CheckpointFileList(Resource):
    checkpoint: str
    """The checkpoint's id, also if the request named the checkpoint `latest` or `best`."""
    data: tuple[CheckpointFile, ...]
    next_cursor: str | None


class Output(Resource):
    """One file that a job wrote to its outputs."""

    path: str
    bytes: int
    modified_at: str


class OutputList(Resource):
    data: tuple[Output, ...]
    left_out: int
    """The number of files that are not listed, because their names are not UTF-8 and no URL can contain them."""
    next_cursor: str | None


class BundleFile(Resource):
    path: str
    bytes: int


class Bundle(Resource):
    """A zip of a user's own code that was uploaded to the service."""

    sha256: str
    """A spec names the bundle by this hash, as `code.bundle`."""
    bytes: int
    unpacked_bytes: int
    files: tuple[BundleFile, ...]
    created_at: str


class BundleList(Page[Bundle]): ...


class TypeCount(Resource):
    """The number of rows in which a column has values of one type."""

    type: str
    """JSON's name of the type: string, integer, number, boolean, null, array or object."""
    rows: int
    first: int
    """The number of the first of these rows."""


class TokenLengths(Resource):
    """The numbers of tokens in the texts of a column. For a conversation, the contents of its messages are added up."""

    least: int
    median: int
    p95: int
    """The number of tokens that 95 % of the texts do not exceed."""
    most: int
    total: int


class ColumnReport(Resource):
    name: str
    types: tuple[TypeCount, ...]
    """The types of the column's values, the most frequent first. A cell of CSV is a number if its text is one, null if
    it is empty, and else a string."""
    missing: int
    """The number of rows without this column."""
    first_missing: int | None
    """The number of the first row without this column."""
    longest: int | None
    """The length of the longest text in characters, or of the longest list in items."""
    tokens: TokenLengths | None
    """The numbers of tokens in the column's texts. null unless a tokenizer was named."""


class BadRow(Resource):
    number: int
    """The number of the row's line in the file, from 1. In Parquet, the number of the row, from 1."""
    problem: str


class RowReport(Resource):
    """A description of an uploaded file's rows, made at the upload."""

    rows: int
    """The number of rows that were read, which are all rows if `is_complete` is true."""
    bad_rows: int
    columns: tuple[ColumnReport, ...]
    first_bad: tuple[BadRow, ...]
    """The first 20 bad rows."""
    is_complete: bool
    """False if some rows of the file were not checked. `notes` has the reason."""
    notes: tuple[str, ...]
    tokenizer: str | None = None
    """The tokenizer that counted the tokens."""


class File(Resource):
    """An uploaded file of rows."""

    id: str
    """A spec names the file by this id, under `data`."""
    name: str
    """The file name of the first upload with these bytes."""
    kind: Annotated[str, OpenEnum(Literal["jsonl", "csv", "tsv", "parquet", "txt"])]
    bytes: int
    sha256: str
    created_at: str
    created_by: str | None
    rows: int | None = None
    """The number of rows that were read at upload. null: the file was uploaded before rows were checked."""
    bad_rows: int | None = None
    """The number of these rows that training cannot use."""
    report: RowReport | None = None
    """A description of the rows. null in lists, and for files that were uploaded before rows were checked."""


class FileList(Page[File]): ...
