"""Tests datasets of files: rows by index, little memory, and errors with file and line."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from torch.utils.data import DataLoader

from footplate.components import files
from footplate.contract.errors import DatasetError

SAVED = str(Path(__file__).parent / "saved_by_datasets")


def write_file(folder: Path, name: str, text: str) -> list[str]:
    (folder / name).write_text(text)
    return [str(folder / name)]


def all_of(rows: Any) -> list[Any]:
    return [rows[at] for at in range(len(rows))]


def parquet(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)
    return str(folder / name)


def test_a_csv_record_may_hold_delimiters_quotes_and_line_ends(tmp_path: Path) -> None:
    paths = write_file(tmp_path, "a.csv", 'text,label\r\n"one, ""two""\nthree",1\r\n\r\nfour,0\r\n')

    rows = files.csv(paths=paths)

    assert all_of(rows) == [{"text": 'one, "two"\nthree', "label": 1}, {"text": "four", "label": 0}]
    assert all_of(pickle.loads(pickle.dumps(rows))) == all_of(rows)


def test_a_csv_value_may_be_as_long_as_a_document(tmp_path: Path) -> None:
    document = "word " * 100_000

    assert all_of(files.csv(paths=write_file(tmp_path, "a.csv", f"text\n{document}\n"))) == [{"text": document}]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_row_that_is_nested_too_deep_is_reported_with_its_line(tmp_path: Path, streaming: bool) -> None:
    paths = write_file(tmp_path, "a.jsonl", '{"x": 1}\n{"x": ' + "[" * 100_000 + "]" * 100_000 + "}\n")

    with pytest.raises(DatasetError, match=r"a\.jsonl, line 2.*nested too deep"):
        list(files.jsonl(paths=paths, streaming=streaming))


def test_a_csv_column_is_numeric_if_all_its_values_are_numbers(tmp_path: Path) -> None:
    paths = write_file(tmp_path, "a.csv", "whole,number,code,mixed,gap\n1,1,007,1,\n-2,2.5e3,008,x,3\n")

    assert all_of(files.csv(paths=paths)) == [
        {"whole": 1, "number": 1.0, "code": "007", "mixed": "1", "gap": None},
        {"whole": -2, "number": 2500.0, "code": "008", "mixed": "x", "gap": 3},
    ]


def test_several_csv_files_are_read_as_one_if_their_columns_agree(tmp_path: Path) -> None:
    first, second = write_file(tmp_path, "a.tsv", "x\ty\n1\t2\n"), write_file(tmp_path, "b.tsv", "x\ty\n3\t4\n")
    other = write_file(tmp_path, "c.tsv", "x\tz\n3\t4\n")

    assert [row["y"] for row in all_of(files.csv(paths=first + second))] == [2, 4]
    with pytest.raises(DatasetError, match=r"c\.tsv.*x, z.*x, y"):
        files.csv(paths=first + other)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x,y\n1,2\n3\n", r"a\.csv, line 3: 1 values, but there are 2 columns: x, y"),
        ('x,y\n1,"2\n', r"a\.csv, line 2: "),
        ("x,x\n1,2\n", "names the column 'x' twice"),
        ("x,y\n", r"there is no row in a\.csv"),
        ("", r"there is no row in a\.csv"),
    ],
)
def test_an_error_in_a_csv_file_is_reported_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        files.csv(paths=write_file(tmp_path, "a.csv", text))


def test_a_file_that_is_not_utf8_text_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x\n\xff\xfe\n")
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\xfe\n")

    with pytest.raises(DatasetError, match=r"a\.csv, line 2") as error:
        files.csv(paths=[str(tmp_path / "a.csv")])
    assert error.value.hint == "save the file as UTF-8"
    with pytest.raises(DatasetError, match=r"a\.txt, line 2"):
        files.text(paths=[str(tmp_path / "a.txt")])[1]


def test_a_text_file_yields_one_row_per_line_or_one_row_per_file(tmp_path: Path) -> None:
    first, second = write_file(tmp_path, "a.txt", "one\r\n\n  \ntwo"), write_file(tmp_path, "b.txt", "three\nfour\n")

    assert [row["text"] for row in all_of(files.text(paths=first + second))] == ["one", "two", "three", "four"]
    assert all_of(files.text(paths=second, by="file", column="said")) == [{"said": "three\nfour\n"}]


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_a_file_without_rows_is_refused_before_training(tmp_path: Path, text: str) -> None:
    with pytest.raises(DatasetError, match=r"no row in.*a\.jsonl") as error:
        files.jsonl(paths=write_file(tmp_path, "a.jsonl", text))
    assert error.value.hint


@pytest.mark.parametrize("bounds", [{"offset": -1}, {"limit": 0}])
def test_an_offset_or_limit_out_of_range_is_refused_in_python_too(bounds: dict[str, int], tmp_path: Path) -> None:
    """A spec's schema refuses such values, and a script has no schema."""
    paths = write_file(tmp_path, "a.jsonl", '{"x": 0}\n{"x": 1}\n')

    with pytest.raises(DatasetError, match="offset must be 0 or more, limit 1 or more"):
        files.jsonl(paths=paths, **bounds)


def test_offset_and_limit_keep_the_line_numbers_of_the_file_in_errors(tmp_path: Path) -> None:
    paths = write_file(tmp_path, "a.jsonl", '{"x": 0}\n{"x": 1}\n{"x": 2}\n[]\n')

    rows = files.jsonl(paths=paths, offset=1, limit=2)

    assert [row["x"] for row in all_of(rows)] == [1, 2]
    assert len(files.jsonl(paths=paths, limit=99)) == 4
    with pytest.raises(DatasetError, match=r"a\.jsonl.*line 4.*a list"):
        files.jsonl(paths=paths, offset=2)[1]
    with pytest.raises(DatasetError, match="offset is 4, but there are only 4 rows"):
        files.jsonl(paths=paths, offset=4)


def test_parquet_files_are_read_as_rows_also_in_loader_workers(tmp_path: Path) -> None:
    rows = [{"text": f"t{at}", "label": at % 2, "ids": list(range(at % 3))} for at in range(50)]
    paths = [parquet(tmp_path, "a.parquet", rows[:30]), parquet(tmp_path, "b.parquet", rows[30:])]

    table = files.parquet(paths=paths)

    assert all_of(table) == rows
    assert table[-1] == rows[-1]
    assert files.parquet(paths=paths, columns=["label"])[1] == {"label": 1}
    loader: Any = DataLoader(files.parquet(paths=paths, columns=["label"]), batch_size=10, num_workers=1)
    assert [batch["label"].sum().item() for batch in loader] == [5] * 5


def test_an_error_in_a_parquet_file_is_reported_with_the_file_name(tmp_path: Path) -> None:
    good = parquet(tmp_path, "a.parquet", [{"text": "x"}])
    other = parquet(tmp_path, "b.parquet", [{"text": 5}])

    with pytest.raises(DatasetError, match=r"a\.parquet.*'txt', only: text") as error:
        files.parquet(paths=[good], columns=["txt"])
    assert error.value.hint == "did you mean 'text'?"
    with pytest.raises(DatasetError, match=r"b\.parquet.*columns"):
        files.parquet(paths=[good, other])
    with pytest.raises(DatasetError, match=r"c\.parquet.*as Parquet"):
        files.parquet(paths=write_file(tmp_path, "c.parquet", "no"))


def test_a_folder_saved_by_the_datasets_library_is_read() -> None:
    rows = files.dataset(path=SAVED, split="train")

    assert all_of(rows) == [
        {"text": "dull", "label": 0, "ids": [1, 2]},
        {"text": "fine", "label": 1, "ids": [3]},
        {"text": "warm", "label": 1, "ids": []},
    ]
    assert len(files.dataset(path=f"{SAVED}/test")) == 1


@pytest.mark.parametrize(
    ("path", "split", "says"),
    [
        (SAVED, None, "needs the argument split; its splits are: train, test"),
        (SAVED, "tain", "has no split 'tain'; its splits are: train, test"),
        (f"{SAVED}/test", "test", "holds one dataset and no splits"),
        (str(Path(SAVED).parent), None, "is neither a folder of save_to_disk nor a dataset"),
    ],
)
def test_an_unknown_split_of_a_saved_folder_is_refused_with_the_known_ones(
    path: str, split: str | None, says: str
) -> None:
    with pytest.raises(DatasetError, match=says):
        files.dataset(path=path, split=split)


def test_a_saved_folder_that_names_files_outside_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "../secret.arrow"}]}')

    with pytest.raises(DatasetError, match="names a file outside"):
        files.dataset(path=str(tmp_path))
