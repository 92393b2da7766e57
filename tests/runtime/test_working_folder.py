"""A script's working folder: the bundle's files are in it, and what the script writes is among its outputs."""

from __future__ import annotations

import subprocess
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from footplate.contract import layout
from footplate.contract.host.bundle_files import Bundle, unpack
from footplate.runtime import working_folder
from footplate.runtime.working_folder import keep_outputs, lay_out
from footplate.sdk import bundles

FILES = {"train.py": "print()", "conf/ds.json": "{}", "outputs/example.txt": "brought"}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as packed:
        for name, text in FILES.items():
            packed.writestr(name, text)
            (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
            (unpacked / name).write_text(text)
            (unpacked / name).chmod(0o444)
    return Bundle("0" * 64, unpacked, tuple(FILES))


@pytest.fixture
def folder(tmp_path: Path, bundle: Bundle) -> Path:
    """Returns the working folder with the files of the bundle in it."""
    (folder := tmp_path / "attempt").mkdir()
    lay_out(bundle, folder)
    return folder


def outputs(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder / "outputs")): path.read_text() for path in files_in(folder / "outputs")}


def files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def test_a_script_may_change_its_copies_of_the_bundle_files(bundle: Bundle, folder: Path) -> None:
    (folder / "conf/ds.json").write_text("changed")
    again = lay_out(bundle, folder)

    assert {str(path.relative_to(folder)) for path in files_in(folder)} == set(FILES)
    assert (folder / "conf/ds.json").read_text() == "changed", "an existing file is not replaced"
    assert (bundle.folder / "conf/ds.json").read_text() == "{}"
    assert (again.folder, again.paths) == (folder, bundle.paths)


def test_an_executable_file_of_an_uploaded_folder_can_be_run_by_the_script(tmp_path: Path) -> None:
    (code := tmp_path / "code").mkdir()
    for name, mode in (("tool.sh", 0o744), ("data.sh", 0o644)):
        (code / name).write_text("#!/bin/sh\necho ran\n")
        (code / name).chmod(mode)
    archive = bundles.packed(code)
    bundle = tmp_path / layout.bundle_file(sha256(archive).hexdigest())
    bundle.parent.mkdir()
    bundle.write_bytes(archive)

    unpacked = unpack(bundle.stem, tmp_path, tmp_path / "scratch")
    lay_out(unpacked, tmp_path / "attempt")

    modes = {path.name: path.stat().st_mode & 0o777 for path in files_in(unpacked.folder)}
    assert modes == {"tool.sh": 0o555, "data.sh": 0o444}
    assert subprocess.check_output(["./tool.sh"], cwd=tmp_path / "attempt", text=True) == "ran\n"
    assert not (tmp_path / "attempt/data.sh").stat().st_mode & 0o111


def test_files_that_a_script_writes_become_outputs_and_files_of_the_bundle_do_not(folder: Path) -> None:
    (folder / "conf/ds.json").write_text("changed")
    (folder / "outputs/told.txt").write_text("said")
    for name in ("results/table.csv", "model.pt", ".begun", ".cache/big", "__pycache__/train.pyc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    (folder / "link").symlink_to("/etc/hostname")

    notes = keep_outputs(folder, folder.parent / "code.zip")

    assert notes == []
    assert outputs(folder) == {
        "conf/ds.json": "changed",
        "model.pt": "model.pt",
        "results/table.csv": "results/table.csv",
        "told.txt": "said",
    }
    assert (folder / "model.pt").is_file(), "a resumed attempt finds this file"


def test_collecting_the_outputs_twice_as_two_ranks_do_gives_the_same_files(folder: Path) -> None:
    (folder / "model.pt").write_text("x")

    assert [keep_outputs(folder, folder.parent / "code.zip") for _ in range(2)] == [[], []]
    assert outputs(folder) == {"model.pt": "x"}


def test_a_file_in_outputs_takes_precedence_over_a_file_in_the_working_folder(folder: Path) -> None:
    (folder / "outputs/a.txt").write_text("outputs")
    (folder / "a.txt").write_text("beside")

    (note,) = keep_outputs(folder, folder.parent / "code.zip")

    assert "outputs/ has another file" in note
    assert note.endswith(": a.txt")
    assert outputs(folder) == {"a.txt": "outputs"}


@pytest.mark.parametrize(("name", "value"), [("MAX_FILES", 2), ("MAX_BYTES", 2)])
def test_files_above_the_output_limit_are_counted_in_the_note(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    monkeypatch.setattr(working_folder, name, value)
    for path in ("deep/a", "deep/b", "table"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("x")

    (note,) = keep_outputs(folder, folder.parent / "code.zip")

    assert note.startswith("1 files of the working folder are not among the outputs")
    assert outputs(folder) == {"deep/a": "x", "table": "x"}
