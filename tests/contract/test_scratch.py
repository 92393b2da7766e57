"""Tests the temporary folder of an attempt, which is deleted after its supervisor has ended in any way."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from footplate.contract.host.scratch import LONGEST, YOUNG_SECONDS, scratch, sweep
from footplate.contract.ids import new_node_id


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Path:
    path = Path(tempfile.mkdtemp(prefix="fp-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def age(folder: Path) -> None:
    seconds = folder.stat().st_mtime - 2 * YOUNG_SECONDS
    os.utime(folder, (seconds, seconds))


def test_the_temporary_folder_is_deleted_when_its_supervisor_ends(root: Path) -> None:
    with scratch(new_node_id()) as folder:
        Path(folder, "listener").touch()

    assert list(root.iterdir()) == []
    root.rmdir()


def test_a_sweep_deletes_only_unlocked_old_folders_of_its_own_node(root: Path) -> None:
    node, other = new_node_id(), new_node_id()
    leftover, foreign, young = (root / f"footplate-{whose[-8:]}-{name}" for whose, name in
                            ((node, "left"), (other, "left"), (node, "young")))  # fmt: skip
    for folder in (leftover, foreign, young):
        folder.mkdir()
    # The folders of an unpacked bundle are read-only.
    (leftover / "code" / "pack").mkdir(parents=True)
    (leftover / "code" / "pack" / "net.py").touch()
    for folder in (leftover / "code" / "pack", leftover / "code"):
        folder.chmod(0o555)
    age(leftover), age(foreign)

    with scratch(node) as locked:
        age(Path(locked))
        sweep(node)
        there = {folder.name for folder in root.iterdir()}

    assert there == {Path(locked).name, foreign.name, young.name}
    for folder in (foreign, young, root):
        folder.rmdir()


def test_a_temporary_folder_too_long_for_a_socket_path_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * LONGEST)[:LONGEST]
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    with scratch(new_node_id()) as folder:
        assert Path(folder).parent == Path("/tmp")
