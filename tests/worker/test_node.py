from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from footplate.contract.ids import is_id, new_node_id
from worker.attempt.local_ranks import threads_of
from worker.identity import Node, claim_node
from worker.node.canary import no_restart, restart_if_idle


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Node]:
    """Returns a function that starts a node without its lock, as if the previous process had ended."""
    monkeypatch.setattr("worker.identity._lock", lambda _: True)
    return lambda: claim_node(tmp_path, 1)


@pytest.mark.parametrize(
    ("cpus", "slots", "threads"), [(2, 1, 1), (8, 1, 7), (8, 4, 1), (64, 8, 7), (1, 1, 1), (2, 8, 1)]
)
def test_the_ranks_of_a_node_never_have_more_threads_than_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, slots: int, threads: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cpus)

    assert claim_node(tmp_path, slots).threads == threads


@pytest.mark.parametrize(("text", "threads"), [("8", 8), (" 4,2", 4), ("", 3), ("0", 3), ("auto", 3)])
def test_threads_are_those_of_omp_num_threads_or_the_usual_number(text: str, threads: int) -> None:
    assert threads_of(text, default=3) == threads


def test_boot_ids_sort_by_start_even_if_the_clock_is_set_back(
    start: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    boots = []
    for at_ms in (10_000, 20_000, 15_000, 15_000, 20_001, 30_000):
        monkeypatch.setattr("footplate.contract.ids.time.time_ns", lambda at_ms=at_ms: at_ms * 1_000_000)
        boots.append(start().boot)

    assert boots == sorted(set(boots))


@pytest.mark.parametrize("text", ["{}", '{"node": 7, "boot": 8}', '{"node": "node_1"}', "[1]", "", "no json"])
def test_an_unreadable_identity_file_makes_a_new_node(tmp_path: Path, start: Callable[[], Node], text: str) -> None:
    (tmp_path / "node.json").write_text(text)

    node = start()

    assert is_id(node.id, "node")
    assert start().id == node.id


def test_an_identity_file_without_a_boot_keeps_its_identity(tmp_path: Path, start: Callable[[], Node]) -> None:
    names = new_node_id()
    (tmp_path / "node.json").write_text(f'{{"node": "{names}"}}')

    assert start().id == names


def test_a_restart_that_fails_leaves_the_node_able_to_claim(
    start: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    monkeypatch.setattr("sys.executable", "/nowhere/python")

    with pytest.raises(FileNotFoundError):
        restart_if_idle(node)

    with no_restart(node):
        restart_if_idle(node)
