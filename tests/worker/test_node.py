from __future__ import annotations

from pathlib import Path

import pytest

from worker.node import claim_node


@pytest.mark.parametrize(
    ("cpus", "slots", "threads"), [(2, 1, 1), (8, 1, 7), (8, 4, 1), (64, 8, 7), (1, 1, 1), (2, 8, 1)]
)
def test_the_ranks_of_a_node_never_have_more_threads_than_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, slots: int, threads: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cpus)

    assert claim_node(tmp_path, slots).threads == threads
