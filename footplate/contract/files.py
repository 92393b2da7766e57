"""The files that a spec names: uploaded files, files on a hub (`hub.py`), and files by their URL.

An uploaded file's id is `file_<sha256>.jsonl`, so files with equal content have one id. A node needs only the id to
find and verify the file. An id can be used as a dataset, because its suffix selects the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from footplate.contract.body import pointer_to
from footplate.contract.hub import PATH_ARGUMENTS, is_hub_name
from footplate.contract.ids import FileId, is_file

KINDS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".txt": "txt",
}  # fmt: skip
"""The kind of a file by the suffix of its name."""


def file_id(sha256: str, kind: str) -> FileId:
    return FileId(f"file_{sha256}.{kind}")


def sha256_of(file: FileId) -> str:
    return file.removeprefix("file_").partition(".")[0]


def kind_of(name: str) -> str | None:
    """Returns the kind of rows in a file of this name, or None if no reader has this suffix."""
    return KINDS.get(PurePosixPath(name).suffix.lower())


def no_reader(name: str) -> tuple[str, str]:
    """Returns the error message and the hint for a file whose suffix no reader supports."""
    suffix = PurePosixPath(name).suffix.lower()
    subject = f"{suffix!r} files" if suffix else "a file without a suffix"
    detail = f"{subject[:80]} cannot be read; data files are {', '.join(KINDS)}"
    return detail, INSTEAD.get(suffix, "name the file after its format, such as rows.jsonl")


INSTEAD = {
    ".json": "jq -c '.[]' rows.json > rows.jsonl writes each object of an array to a line",
    ".xlsx": "save the sheet as CSV",
    ".xls": "save the sheet as CSV",
    ".gz": "unpack it first: gunzip FILE",
    ".zst": "unpack it first: unzstd FILE",
    ".zip": "unpack it first; a zip of code goes to POST /bundles",
    ".arrow": "write it as Parquet: pyarrow.parquet.write_table(table, 'rows.parquet')",
    ".py": "this is code: footplate submit SPEC --code FILE",
}
"""Hints for files that cannot be read, by suffix."""


def named_in(arguments: Iterable[ArgumentText]) -> Iterator[tuple[str, FileId]]:
    """Yields (pointer, id) of every uploaded file that an argument names."""
    yield from ((argument.pointer, FileId(argument.text)) for argument in arguments if is_file(argument.text))


def on_hub(arguments: Iterable[ArgumentText]) -> Iterator[tuple[str, str]]:
    """Yields (pointer, name) of each hub name in the arguments."""
    yield from ((argument.pointer, argument.text) for argument in arguments if is_hub_name(argument.text))


def by_url(arguments: Iterable[ArgumentText]) -> Iterator[tuple[str, str]]:
    """Yields (pointer, URL) of each data file that is named by a URL. A URL in another argument is only a text."""
    for argument in arguments:
        if argument.is_path and argument.is_of_a_dataset and is_url(argument.text):
            yield argument.pointer, argument.text


class ArgumentText(NamedTuple):
    """A text in a component's arguments."""

    path: tuple[str | int, ...]
    """The keys and indexes that lead to the text, from the root of the spec."""
    text: str
    is_path: bool
    """True if the node reads the argument as the name of a file."""

    @property
    def pointer(self) -> str:
        return pointer_to(*self.path)

    @property
    def is_of_a_dataset(self) -> bool:
        return self.path[0] == "data" and self.path[1] != "map"


def texts_in(value: Any, path: tuple[str | int, ...], *, is_path: bool = False) -> Iterator[ArgumentText]:
    if isinstance(value, str):
        yield ArgumentText(path, value, is_path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_in(item, (*path, key), is_path=is_path or key in PATH_ARGUMENTS)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from texts_in(item, (*path, index), is_path=is_path)


def is_url(text: str) -> bool:
    return text.startswith(("https://", "http://"))


def shown(url: str) -> str:
    """Returns the URL without its query, for notes and errors, because the query may hold a secret."""
    return url.partition("?")[0][:200]


def pin_of(place: str, pin: str) -> str:
    """Returns the text that describes a pinned version: the sha256 of a URL's file, or a hub's commit."""
    return f"sha256 {pin}" if is_url(place) else f"commit {pin}"
