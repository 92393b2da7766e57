"""Files are recorded when an attempt begins, and a difference is reported to the next attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from footplate.contract.errors import DatasetError
from footplate.contract.host import data_fingerprint
from footplate.contract.host.data_fingerprint import fingerprints, require_same, write_record

NAME = "data://part-*.jsonl"


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"part-{number}.jsonl" for number in range(3)]
    for file in files:
        file.write_text(f"{file.name}\n" * 100)
    return files


def fingerprints_of(files: list[Path]) -> dict[str, str]:
    return fingerprints({NAME: [str(file) for file in files]})


def test_equal_files_in_another_folder_pass_the_check(parts: list[Path], tmp_path: Path) -> None:
    before = fingerprints_of(parts)
    (tmp_path / "there").mkdir()
    there = [file.rename(tmp_path / "there" / file.name) for file in parts]

    write_record(tmp_path, before)
    require_same(tmp_path, fingerprints_of(there))
    assert fingerprints_of(there) == fingerprints({NAME: [str(tmp_path / "there")]}), "a folder equals its files"


@pytest.mark.parametrize("change", ["longer", "other", "fewer", "swapped"])
def test_changed_files_are_refused_with_their_names(parts: list[Path], tmp_path: Path, change: str) -> None:
    write_record(tmp_path, fingerprints_of(parts))
    now = parts
    match change:
        case "longer":
            parts[1].write_text(parts[1].read_text() + "\n")
        case "other":
            parts[1].write_text(parts[1].read_text().replace("part", "trap"))
        case "fewer":
            now = parts[:2]
        case "swapped":
            first, second = (file.read_text() for file in parts[:2])
            parts[0].write_text(second)
            parts[1].write_text(first)

    with pytest.raises(DatasetError, match="3 files of 3,900 bytes") as error:
        require_same(tmp_path, fingerprints_of(now))
    assert NAME in error.value.message
    assert error.value.hint


def test_large_files_are_sampled_in_blocks_over_all_files(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_fingerprint, "BLOCK", 64)
    monkeypatch.setattr(data_fingerprint, "BLOCKS", 16)
    write_record(tmp_path, fingerprints_of(parts))
    result = 0
    for file in parts:
        whole = file.read_bytes()
        for start in range(0, len(whole), 64):
            file.write_bytes(whole[:start] + b"!" + whole[start + 1 :])
            try:
                require_same(tmp_path, fingerprints_of(parts))
            except DatasetError:
                result += 1
        file.write_bytes(whole)

    assert 14 <= result <= 16
    with pytest.raises(DatasetError):
        require_same(tmp_path, fingerprints({NAME: [str(file) for file in (*parts, parts[0])]}))


@pytest.mark.parametrize("record", [None, "{", '{"data://another": "a file"}'])
def test_an_attempt_without_a_readable_record_skips_the_check(
    parts: list[Path], tmp_path: Path, record: str | None
) -> None:
    if record is not None:
        (tmp_path / data_fingerprint.RECORD).write_text(record)

    require_same(tmp_path, fingerprints_of(parts))


def test_a_file_that_disappears_during_the_check_is_named(parts: list[Path]) -> None:
    parts[2].unlink()

    with pytest.raises(DatasetError, match=r"part-2\.jsonl.*No such file"):
        fingerprints_of(parts)
