"""Checks that the compared loops train the same, and that every part of the benchmark runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import gpu, loop
from bench.loops import resuming, saving, work

Race = Callable[..., dict[str, Any]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinks every measurement to the smallest size that still runs."""
    for name, item in work.WORKS.items():
        monkeypatch.setitem(work.WORKS, name, dataclasses.replace(item, batch=4, steps=10))
    monkeypatch.setattr(loop, "EVALUATED", 64)
    monkeypatch.setattr(loop, "SEQUENCES", 32)
    monkeypatch.setattr(saving, "WIDTH", 16)
    monkeypatch.setattr(resuming, "STEPS", 100)
    monkeypatch.setattr(resuming, "STOP", 40)
    monkeypatch.setattr(resuming, "SAMPLES", 800)


@pytest.mark.parametrize(
    "name", [name if name == "mlp" else pytest.param(name, marks=pytest.mark.matrix) for name in work.WORKS]
)
def test_all_loops_train_the_same(small: None, race: Race, name: str) -> None:
    results = race("training", work=name, steps=10, whole=20, turns=1)

    losses = {item: turns[0]["losses"] for item, turns in results.items()}
    assert losses["ours"] == losses["transformers"]
    assert losses["raw"] == pytest.approx(losses["ours"], rel=1e-5)
    assert losses["accelerate"] == pytest.approx(losses["ours"], rel=1e-5)


@pytest.mark.parametrize("part", ["resume", "evaluate", "memory", "save"])
@pytest.mark.matrix
def test_every_part_of_the_loop_benchmark_runs_in_its_quick_form(
    small: None, race: Race, part: str, tmp_path: Path
) -> None:
    rows = loop.PARTS[part](tmp_path, True)

    assert any("ours" in row.what and row.goal for row in rows)
    assert all(row.values for row in rows)


@pytest.mark.matrix
def test_the_gpu_benchmark_runs_without_a_gpu(race: Race, tmp_path: Path) -> None:
    rows = gpu.run(tmp_path / "own", quick=True, trace=str(tmp_path / "traces"))

    assert any("relative to the loop by hand" in row.what for row in rows)
    assert len(list((tmp_path / "traces").iterdir())) == 3
