"""Checks that streams of files yield the same rows as indexed datasets of these files.

A resume continues with the next row, and reads none twice.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from torch.utils.data import DataLoader

from footplate.components import files, maps
from footplate.contract.errors import DatasetError

ROWS = [{"text": f"row {at}, \u00e4 \U0001f600", "label": at % 3} for at in range(50)]
SAVED = str(Path(__file__).parent / "saved_by_datasets")


def jsonl(folder: Path, **more: Any) -> Any:
    for name, rows in (("a", ROWS[:20]), ("b", []), ("c", ROWS[20:])):
        text = "\ufeff" * (name == "a") + "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    return files.jsonl(paths=[str(folder / f"{name}.jsonl") for name in "abc"], **more)


def csv(folder: Path, **more: Any) -> Any:
    (folder / "a.csv").write_text("text,label\n" + "".join(f'"{row["text"]}\n",{row["label"]}\n' for row in ROWS))
    return files.csv(paths=[str(folder / "a.csv")], **more)


def text(folder: Path, **more: Any) -> Any:
    (folder / "a.txt").write_bytes("\r\n".join(row["text"] for row in ROWS).encode())
    return files.text(paths=[str(folder / "a.txt")], **more)


def whole_texts(folder: Path, **more: Any) -> Any:
    for at in range(12):
        (folder / f"{at}.txt").write_text(f"{at}\n{at}")
    return files.text(paths=[str(folder / f"{at}.txt") for at in range(12)], by="file", **more)


def parquet(folder: Path, **more: Any) -> Any:
    for name, rows in (("a", ROWS[:20]), ("b", ROWS[20:])):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet", row_group_size=7)
    return files.parquet(paths=[str(folder / f"{name}.parquet") for name in "ab"], **more)


def saved_dataset(folder: Path, **more: Any) -> Any:
    return files.dataset(path=SAVED, split="train", **more)


def repository(folder: Path, **more: Any) -> Any:
    parquet(folder)
    return files.dataset(path=str(folder), **more)


Make = Callable[..., Any]
KINDS = pytest.mark.parametrize("make", [jsonl, csv, text, whole_texts, parquet, saved_dataset, repository])


@KINDS
@pytest.mark.parametrize("which", [{}, {"offset": 2}, {"limit": 2}, {"offset": 1, "limit": 1}])
def test_a_stream_yields_the_same_rows_as_the_indexed_dataset(
    tmp_path: Path, make: Make, which: dict[str, int]
) -> None:
    by_number = make(tmp_path, **which)

    stream = make(tmp_path, **which, streaming=True)

    assert not hasattr(stream, "__len__")
    assert [*stream] == [by_number[at] for at in range(len(by_number))]
    assert [*stream] == [*pickle.loads(pickle.dumps(stream))], "another process must read the same rows"


@KINDS
@pytest.mark.parametrize("row_count", [1, 2])
def test_a_resumed_file_stream_continues_with_the_next_row(tmp_path: Path, make: Make, row_count: int) -> None:
    for which in ({}, {"offset": 1, "limit": 4}):
        first = make(tmp_path, streaming=True, **which)
        reading = iter(first)
        rows = [next(reading) for _ in range(row_count)]
        place = json.loads(json.dumps(first.state_dict()))

        resumed = make(tmp_path, streaming=True, **which)
        resumed.load_state_dict(place)
        assert resumed.state_dict() == place, "a stream has its restored position before it reads the next row"

        assert [*rows, *resumed] == [*make(tmp_path, streaming=True, **which)]


def test_a_resumed_file_stream_does_not_read_earlier_bytes_again(tmp_path: Path) -> None:
    first = jsonl(tmp_path, streaming=True)
    reading = iter(first)
    for _ in range(30):
        next(reading)
    (tmp_path / "a.jsonl").unlink()
    content = (tmp_path / "c.jsonl").read_bytes()
    place = first.state_dict()["place"]
    (tmp_path / "c.jsonl").write_bytes(b"\0" * place + content[place:])

    resumed = files.jsonl(paths=[str(tmp_path / f"{name}.jsonl") for name in "abc"], streaming=True)
    resumed.load_state_dict(first.state_dict())

    assert [*resumed] == ROWS[30:]


@pytest.mark.parametrize("make", [jsonl, parquet])
def test_loader_workers_share_a_stream_without_repeating_rows(tmp_path: Path, make: Make) -> None:
    loader = DataLoader(make(tmp_path, streaming=True), batch_size=None, num_workers=2)

    rows = [*loader]

    assert rows == ROWS


@pytest.mark.parametrize("streaming", [False, True])
def test_an_unusable_row_is_reported_with_file_and_line(tmp_path: Path, streaming: bool) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n\n{"x": 2\n[3]\n')
    rows: Any = files.jsonl(paths=[str(tmp_path / "a.jsonl")], streaming=streaming)
    reading = iter(maps.rename(rows, columns={"x": "y"}))
    assert next(reading) == {"y": 1}
    with pytest.raises(DatasetError, match=r"a\.jsonl, line 3: "):
        next(reading)
    with pytest.raises(DatasetError, match=r"a\.jsonl.*line 1.*'z', only: x"):
        next(iter(maps.keep(rows, columns=["z"])))
    with pytest.raises(DatasetError, match=r"gone\.jsonl.*No such file"):
        next(iter(files.jsonl(paths=[str(tmp_path / "gone.jsonl")], streaming=streaming)))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_missing_column_or_an_empty_list_of_files_is_refused_at_once(tmp_path: Path, streaming: bool) -> None:
    with pytest.raises(DatasetError, match="'txt', only: text, label"):
        parquet(tmp_path, columns=["txt"], streaming=streaming)
    with pytest.raises(DatasetError, match="has no file"):
        files.jsonl(paths=[], streaming=streaming)
