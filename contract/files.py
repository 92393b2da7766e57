"""What a spec names and somebody has to bring: uploaded files, and what lies on a hub (`hub.py`).

An uploaded file is `file_<sha256>.jsonl`: the id says what it holds and what reads it. So equal bytes are one file, a
node needs nobody to tell it where one lies or whether it is whole, and a bare id is a dataset, because its suffix picks
the reader as that of a path does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from contract.body import pointer_to
from contract.hub import is_hub_name
from contract.ids import FileId, is_file
from contract.short_forms import components

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
    for path, text in _arguments(spec):
        if is_file(text):
            yield pointer_to(*path), FileId(text)


def on_hub(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(pointer, name) of everything on a hub that a long spec names."""
    for path, text in _arguments(spec):
        if is_hub_name(text):
            yield pointer_to(*path), text


Path = tuple[str | int, ...]


def _arguments(spec: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    for named in components(spec):
        steps = [part.replace("~1", "/").replace("~0", "~") for part in named.pointer.split("/")[1:]]
        yield from _texts(named.component.get("args"), (*steps, "args"))


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, (*path, key))
