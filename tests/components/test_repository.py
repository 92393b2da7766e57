"""Tests datasets of hubs, whose splits come from the card or file names. The error of a missing split lists them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from footplate.components import files
from footplate.contract.errors import DatasetError

CARD = """---
license: mit
configs:
- config_name: small
  default: true
  data_files:
  - split: train
    path: small/*.jsonl
  - split: test
    path: [small/last.jsonl]
- config_name: all
  data_files: "**/*.jsonl"
- config_name: away
  data_files: ../../etc/*.jsonl
---
# Rows
"""


def put(folder: Path, **rows: list[int]) -> str:
    """Writes JSON lines: `data__train=[1, 2]` becomes two rows of data/train.jsonl."""
    for name, numbers in rows.items():
        path = folder / (name.replace("__", "/").replace("_of_", "-of-") + ".jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(json.dumps({"x": number}) for number in numbers))
    return str(folder)


def numbers(path: str, **more: Any) -> list[int]:
    rows = files.dataset(path=path, **more)
    return [rows[at]["x"] for at in range(len(rows))]


def test_splits_follow_from_the_names_of_files_and_folders(tmp_path: Path) -> None:
    path = put(tmp_path, data__train_of_2=[2], data__train_of_1=[1], dev__rows=[3], eval=[4], latest=[5], dataset=[6])
    (tmp_path / "dataset_infos.json").write_text("{}")

    assert numbers(path, split="train") == [1, 2]
    assert numbers(path, split="validation") == [3]
    assert numbers(path, split="test", offset=0, limit=1) == [4]
    with pytest.raises(DatasetError, match="needs the argument split; its splits are: train, validation, test"):
        files.dataset(path=path)


def test_files_without_a_split_name_are_the_train_split(tmp_path: Path) -> None:
    assert numbers(put(tmp_path, rows=[1], more=[0])) == [0, 1]


def test_the_dataset_card_takes_precedence_over_file_names(tmp_path: Path) -> None:
    path = put(tmp_path, small__first=[1], small__last=[2], train=[3])
    (tmp_path / "README.md").write_text(CARD)

    assert numbers(path, split="train") == [1, 2]
    assert numbers(path, split="test") == [2]
    assert numbers(path, config="all") == [1, 2, 3]
    with pytest.raises(DatasetError, match="'smal'; its configs are: small, all, away"):
        files.dataset(path=path, config="smal")
    with pytest.raises(DatasetError, match="names files outside of the repository"):
        files.dataset(path=path, config="away")


def test_the_reader_of_a_repository_follows_from_the_file_suffix(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"x": 1}]), tmp_path / "train-00000-of-00001.parquet")
    (tmp_path / "test.csv").write_text("x\n2\n")

    assert numbers(str(tmp_path), split="train") == [1]
    assert numbers(str(tmp_path), split="test") == [2]
    put(tmp_path, train=[3])
    with pytest.raises(DatasetError, match="several kinds: jsonl, parquet"):
        files.dataset(path=str(tmp_path), split="train")
