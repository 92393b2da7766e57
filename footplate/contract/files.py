"""What a spec names and somebody has to bring: uploaded files, what lies on a hub (`hub.py`), and files by their URL.

An uploaded file is `file_<sha256>.jsonl`: the id says what it holds and what reads it. So equal bytes are one file, a
node needs nobody to tell it where one lies or whether it is whole, and a bare id is a dataset, because its suffix picks
the reader as that of a path does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from footplate.contract.body import pointer_to
from footplate.contract.hub import PATH_ARGUMENTS, is_hub_name
from footplate.contract.ids import FileId, is_file
from footplate.contract.short_forms import Named, components

KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
"""By the suffix of the name that a file comes with."""


def file_id(sha256: str, kind: str) -> FileId:
    return FileId(f"file_{sha256}.{kind}")


def sha256_of(file: FileId) -> str:
    return file.removeprefix("file_").partition(".")[0]


def kind_of(name: str) -> str | None:
    """None: nothing here reads such a file."""
    return KINDS.get(PurePosixPath(name).suffix.lower())


def named_in(spec: dict[str, Any]) -> Iterator[tuple[str, FileId]]:
    """(pointer, id) of every uploaded file that an argument of a long spec's components names."""
    for named in components(spec):
        yield from ((one.pointer, FileId(one.text)) for one in texts(named) if is_file(one.text))


def on_hub(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(pointer, name) of everything on a hub that a long spec names."""
    for named in components(spec):
        yield from ((one.pointer, one.text) for one in texts(named) if is_hub_name(one.text))


def by_url(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(pointer, URL) of every file of rows that a long spec names so. Elsewhere a URL is just a string."""
    for named in components(spec):
        if named.group == "data":
            yield from ((one.pointer, one.text) for one in texts(named) if one.is_path and is_url(one.text))


class Said(NamedTuple):
    """A text in a component's arguments."""

    path: tuple[str | int, ...]
    """The way to it, from the whole spec."""
    text: str
    is_path: bool
    """It stands where a file is named, as the node reads it."""

    @property
    def pointer(self) -> str:
        return pointer_to(*self.path)


def texts(named: Named) -> Iterator[Said]:
    steps = [part.replace("~1", "/").replace("~0", "~") for part in named.pointer.split("/")[1:]]
    return texts_in(named.component.get("args"), (*steps, "args"))


def texts_in(value: Any, path: tuple[str | int, ...], *, is_path: bool = False) -> Iterator[Said]:
    if isinstance(value, str):
        yield Said(path, value, is_path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_in(item, (*path, key), is_path=is_path or key in PATH_ARGUMENTS)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from texts_in(item, (*path, index), is_path=is_path)


def is_url(text: str) -> bool:
    return text.startswith(("https://", "http://"))


def shown(url: str) -> str:
    """For notes and errors: in a query stands what opens the door."""
    return url.partition("?")[0][:200]


def pin_of(place: str, pin: str) -> str:
    """What holds a job to what it began with."""
    return f"sha256 {pin}" if is_url(place) else f"commit {pin}"
