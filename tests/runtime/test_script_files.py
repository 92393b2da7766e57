"""Tests the hint for a script that misses a file: where the script runs, and which files are there."""

from __future__ import annotations

from pathlib import Path

from footplate.runtime.own_loop import MOST_NAMES, not_found


def test_the_hint_lists_the_files_of_the_folder_in_which_the_script_runs(tmp_path: Path) -> None:
    for name in ("train.py", "rows.csv", ".begun"):
        (tmp_path / name).touch()
    (tmp_path / "configs").mkdir()

    assert "a copy of its bundle: configs/, rows.csv, train.py. Put" in not_found(tmp_path)


def test_the_hint_lists_only_the_first_of_many_files(tmp_path: Path) -> None:
    for number in range(MOST_NAMES + 5):
        (tmp_path / f"{number:03}").touch()

    assert "019 and 5 more. Put" in not_found(tmp_path)
