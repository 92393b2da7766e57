"""Checks an upload before it is stored, so that a wrong file is refused here and not by the job that needs it.

Only the first MiB is read, and for Parquet also the last bytes. `row_reports.py` checks the other rows later.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator
from typing import IO

from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.files import kind_of, no_reader

HEAD_BYTES = 1024 * 1024
LONGEST_PARSED = 64 * 1024
"""The longest first line that is parsed here, in characters. While `json` parses, this process answers no request.
Parsing takes 2 ms for this length, and 60 ms for a line of 1 MiB. `row_reports.py` checks longer lines later."""
MAX_NAME_CHARS = 200
PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
"""The first bytes of gzip, zip and zstd."""
_PARQUET = b"PAR1"
HOW_TO_UNPACK = "jq -c '.[]' rows.json > rows.jsonl writes each object of an array into a line"


class InvalidFile(InvalidSpec):
    code = "invalid_file"
    title = "The file cannot be used"


def checked_name(name: str) -> str:
    """Returns the file's name without folders. Raises InvalidFile for a bad name, or an ending that no reader knows."""
    file_name = name.replace("\\", "/").rpartition("/")[2].strip()
    if not file_name or len(file_name) > MAX_NAME_CHARS or not file_name.isprintable():
        text = f"{file_name[:80]!r} is not a file's name, which has 1 to {MAX_NAME_CHARS} printable characters"
        raise InvalidFile([Problem("/query/name", "bad_name", text, "…/files?name=rows.jsonl")])
    if kind_of(file_name) is None:
        raise InvalidFile([Problem("/query/name", "unknown_kind", *no_reader(file_name))])
    return file_name


def check_content(file: IO[bytes], kind: str, size: int) -> None:
    """Raises InvalidFile if the first and last bytes cannot be those of a file of this kind."""
    file.seek(0)
    head = file.read(HEAD_BYTES)
    problem = next(
        _parquet(file, head, size) if kind == "parquet" else _text(head, kind, is_all=size <= len(head)), None
    )
    if problem is not None:
        raise InvalidFile([problem])


def _parquet(file: IO[bytes], head: bytes, size: int) -> Iterator[Problem]:
    file.seek(max(0, size - len(_PARQUET)), os.SEEK_SET)
    if size < 3 * len(_PARQUET) or not head.startswith(_PARQUET) or file.read() != _PARQUET:
        yield Problem("", "not_parquet", "this is not a whole Parquet file: it does not begin and end with PAR1")


def _text(head: bytes, kind: str, *, is_all: bool) -> Iterator[Problem]:
    if not head.strip():
        yield Problem("", "empty_file", "the file is empty", "upload a file with rows")
    if head.startswith(PACKED):
        yield Problem("", "packed", "the file is compressed, and readers do not decompress it", "unpack it first")
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head, final=is_all)
    except UnicodeDecodeError as error:
        detail = f"the file is not UTF-8: byte {error.start} is 0x{head[error.start]:02x}"
        yield Problem("", "not_utf8", detail, "convert it: iconv -f latin1 -t utf-8 rows.csv > utf8.csv")
        return
    if "\0" in text:
        yield Problem("", "not_text", "the file has NUL characters, which a text file must not have")
    if kind == "jsonl":
        yield from _first_line(text, is_all=is_all)


def _first_line(text: str, *, is_all: bool) -> Iterator[Problem]:
    line, end, _ = text.lstrip().partition("\n")
    if len(line) > LONGEST_PARSED or (not end and not is_all):
        return
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        hint = HOW_TO_UNPACK if line.startswith("[") else 'each line is an object, such as {"text": "a", "label": 0}'
        yield Problem("", "not_jsonl", f"the file's first line is not JSON: {str(error)[:120]}", hint)
        return
    if not isinstance(row, dict):
        yield Problem("", "not_jsonl", "the file's first line is not an object, as rows are", HOW_TO_UNPACK)
