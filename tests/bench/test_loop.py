"""Ratios mean something where all four loops do the same, and a figure that nobody can take again is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import gpu, loop
from bench.loops import resuming, saving, work
from bench.loops.race import LOOPS
from bench.loops.race import race as in_processes

Race = Callable[..., dict[str, Any]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything there is to measure, with as little as shows that it runs."""
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
    shown = race("training", work=name, steps=10, whole=20, turns=1)

    losses = {item: turns[0]["losses"] for item, turns in shown.items()}
    assert losses["ours"] == losses["transformers"]
    assert losses["raw"] == pytest.approx(losses["ours"], rel=1e-5)
    assert losses["accelerate"] == pytest.approx(losses["ours"], rel=1e-5)


def test_a_step_of_ours_takes_no_more_calls_than_one_by_hand(small: None, race: Race) -> None:
    """Measured, with batches of 32: 447 by hand, 843 over Accelerate, 1,028 with transformers, 370 with ours."""
    calls = race("calling", turns=0)

    assert calls["ours"] < calls["raw"] * 1.05
    assert calls["raw"] < calls["accelerate"] < calls["transformers"]


@pytest.mark.parametrize("part", ["resume", "evaluate", "memory", "save"])
@pytest.mark.matrix
def test_each_part_s_quick_form_runs(small: None, race: Race, part: str, tmp_path: Path) -> None:
    rows = loop.PARTS[part](tmp_path, True)

    assert any("ours" in row.what and row.bar for row in rows)
    assert all(row.values for row in rows)


def test_who_trained_something_else_is_not_compared() -> None:
    turns = {item: [{"losses": [1.0, 0.5]}] for item in LOOPS}
    loop.require_equal_losses("MLP", turns)

    with pytest.raises(AssertionError, match="ours logged other losses"):
        loop.require_equal_losses("MLP", {**turns, "ours": [{"losses": [1.0, 0.6]}]})


def test_a_ratio_is_of_the_middle_turns_of_rounds() -> None:
    def turns(*seconds: float) -> list[dict[str, float]]:
        return [{"cpu": second, "wall": second} for second in seconds]

    shown = {item: turns(2, 2, 9, 2, 2, 2) for item in LOOPS} | {"raw": turns(1, 1, 1, 1, 7, 1)}

    faster, slower = (loop.compared("", shown, "", faster=value)[0].values for value in (True, False))

    assert loop.ROUNDS == 5
    assert list(slower) == [2, 2, 9, 2, 2 / 7, 2]
    assert list(faster) == [1 / factor for factor in slower]


@pytest.mark.matrix
def test_the_script_for_a_gpu_runs_without_one(race: Race, tmp_path: Path) -> None:
    rows = gpu.run(tmp_path / "own", quick=True, trace=str(tmp_path / "traces"))

    assert any("ours, to by hand" in row.what for row in rows)
    assert len(list((tmp_path / "traces").iterdir())) == 3


def test_loops_take_turns_in_processes_of_their_own() -> None:
    """The whole way: a parent that imports, a fork each, turns, and an end."""
    shown = in_processes("evaluating", work="mlp", samples=64, batch=16, turns=2, loops=("raw", "ours"))

    assert [len(turns) for turns in shown.values()] == [2, 2]
    assert shown["raw"][0]["found"] == pytest.approx(shown["ours"][0]["found"])
