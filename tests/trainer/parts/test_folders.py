"""Tests that files of several machines are collected in one folder, and that other machines get copies.

Threads stand in for processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from torch import Tensor

from footplate.trainer import checkpoint as files
from footplate.trainer.strategies import shared_folder
from footplate.trainer.strategies.peers import OneProcess, Peers

WORLD = 3
WITHIN = 300


class Group:
    def __init__(self) -> None:
        self.barrier = threading.Barrier(WORLD, timeout=WITHIN)
        self.values: list[Any] = [None] * WORLD
        self.lines: dict[tuple[int, int], SimpleQueue[Tensor]] = {
            (index, other): SimpleQueue() for index in range(WORLD) for other in range(WORLD)
        }
        self.spoils = False


class Thread(OneProcess):
    """A process that runs as a thread and is the only one on its machine."""

    world = WORLD
    gather_results = Peers.gather_results

    def __init__(self, rank: int, group: Group) -> None:
        self.rank, self._group = rank, group

    def all_gather(self, value: Any) -> list[Any]:
        self._group.values[self.rank] = value
        self._group.barrier.wait()
        values = list(self._group.values)
        self._group.barrier.wait()
        return values

    def from_main(self, make: Callable[[], Any]) -> Any:
        return self.gather_results(lambda: make() if self.is_main else None)[0]

    def barrier(self) -> None:
        self.all_gather(None)

    def transfer(self, data: Tensor, source: int, to: int | None = None) -> None:
        others = [rank for rank in range(WORLD) if rank != source and to in (None, rank)]
        if self.rank == source:
            for other in others:
                self._group.lines[source, other].put(data.clone().fill_(7) if self._group.spoils else data.clone())
        elif self.rank in others:
            data.copy_(self._group.lines[source, self.rank].get(timeout=WITHIN))


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    monkeypatch.setattr(shared_folder, "CHUNK_BYTES", 4)
    monkeypatch.setattr(shared_folder, "_sees", lambda peers, place: peers.is_main)
    return Group()


def all_do(group: Group, work: Callable[[Thread], Any]) -> list[Any]:
    """Runs `work` on every machine. Returns each result, or the error that `work` raised."""

    def call(rank: int) -> Any:
        try:
            return work(Thread(rank, group))
        except Exception as error:
            return error

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(call, range(WORLD)))


def save_on_all(group: Group, folder: Path, fill: Callable[[int, Path], None]) -> list[Any]:
    def work(peers: Thread) -> Any:
        own = folder / f"machine-{peers.rank}"
        commit = lambda write: files.commit(own, 5, write, {})  # noqa: E731
        return shared_folder.fill_and_commit(peers, commit, lambda at: fill(peers.rank, at), own)

    return all_do(group, work)


def one_of_each(rank: int, at: Path) -> None:
    (at / "deep").mkdir()
    (at / "deep" / f"piece-{rank}").write_text("0123456789"[: 4 * rank])
    (at / "same").write_text(f"of {rank}")


def test_files_of_all_machines_become_one_checkpoint_on_the_first(group: Group, tmp_path: Path) -> None:
    """The machines write files of zero, one and two chunks. Of equal paths, the first machine's file is kept."""
    saves = save_on_all(group, tmp_path, one_of_each)

    assert [type(instance) for instance in saves] == [files.Checkpoint] * WORLD, saves
    folder = tmp_path / "machine-0" / "checkpoint-5"
    entries = files.verify(folder)["files"]
    assert entries.keys() == {"same", "deep/piece-0", "deep/piece-1", "deep/piece-2"}
    assert [(folder / "deep" / f"piece-{rank}").read_text() for rank in range(WORLD)] == ["", "0123", "01234567"]
    assert (folder / "same").read_text() == "of 0"
    assert [list((tmp_path / f"machine-{rank}").iterdir()) for rank in (1, 2)] == [[], []]


@pytest.mark.parametrize("where", range(WORLD))
def test_a_full_disk_on_one_machine_fails_the_save_on_all(group: Group, tmp_path: Path, where: int) -> None:
    def fill(rank: int, at: Path) -> None:
        one_of_each(rank, at)
        if rank == where:
            raise OSError("no space left on device")

    saves = save_on_all(group, tmp_path, fill)

    assert all(isinstance(instance, files.CannotSave) and "no space left" in str(instance) for instance in saves), saves
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_disk_that_fills_during_the_transfer_fails_the_save_on_all(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, at: int, piece: Tensor, file: shared_folder.Listed) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(shared_folder, "_write", full)
    saves = save_on_all(group, tmp_path, one_of_each)

    assert all(isinstance(instance, files.CannotSave) for instance in saves), saves
    monkeypatch.undo()


def test_a_checkpoint_with_corrupted_transfers_is_not_committed(group: Group, tmp_path: Path) -> None:
    group.spoils = True
    saves = save_on_all(group, tmp_path, one_of_each)

    assert all("other bytes than were sent" in str(instance) for instance in saves), saves
    assert not (tmp_path / "machine-0" / "checkpoint-5").exists()


def test_a_save_that_a_single_machine_cannot_start_fails_at_once_on_all(group: Group, tmp_path: Path) -> None:
    (tmp_path / "machine-0").write_text("a file, where a folder has to be")

    saves = save_on_all(group, tmp_path, one_of_each)

    assert all(isinstance(instance, files.CannotSave) for instance in saves), saves


def test_machines_without_the_folder_get_a_copy_of_the_first_machines_files(group: Group, tmp_path: Path) -> None:
    save_on_all(group, tmp_path, one_of_each)

    def read(peers: Thread) -> Any:
        own = tmp_path / f"machine-{peers.rank}"
        with shared_folder.readable_folder(peers, own / "checkpoint-5", own, lambda name: name != "same") as here:
            return here.name, {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}

    first, *others = all_do(group, read)

    assert others == [("checkpoint-5", {"manifest.json", *(f"deep/piece-{rank}" for rank in range(WORLD))})] * 2
    assert first == ("checkpoint-5", others[0][1] | {"same"})
    assert [list((tmp_path / f"machine-{rank}").iterdir()) for rank in (1, 2)] == [[], []], "the copy is deleted"


def test_equal_checkpoints_on_all_machines_are_not_sent(group: Group, tmp_path: Path) -> None:
    for rank in range(WORLD):
        files.commit(tmp_path / f"machine-{rank}", 5, lambda at: (at / "same").write_text("x") and None, {})

    def bring(peers: Thread) -> Path:
        own = tmp_path / f"machine-{peers.rank}"
        return shared_folder.fetch(peers, own / "checkpoint-5", own / "copy")

    result = all_do(group, bring)

    assert result == [tmp_path / f"machine-{rank}" / "checkpoint-5" for rank in range(WORLD)]
