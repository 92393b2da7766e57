"""Compares the Trainer with a loop by hand, with Accelerate and with transformers' Trainer.

It measures the speed of five models, the Python calls of a step, and the times to the first step and to resume. It also
measures evaluations, and the wait for a checkpoint.

    python -m bench.loop [--quick] [speed] [calls] [start] [resume] [evaluate] [memory] [save]
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import report
from bench.loops.race import LOOPS, PINNED, race
from bench.loops.starting import start

OTHERS = ("ours", "accelerate", "transformers")
CLOCKS = {"cpu": "by CPU time", "wall": "by the wall clock"}
ROUNDS = 5
TOLERANCE = 1e-3
"""The relative difference to the loop by hand that losses and findings may have."""
EVALUATED = 20_000
"""The number of samples for the small model."""
SEQUENCES = 1000
"""The number of sequences of 128 tokens, with a thousand logits for each token."""
Shown = dict[str, list[Any]]


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    return [row for part in PARTS.values() for row in part(folder, quick)]


def speed(folder: Path, quick: bool) -> list[report.Row]:
    """Measures a step of each model. All loops must train the same and log the same losses."""
    from bench.loops.work import WORKS

    rows: list[report.Row] = []
    for name, work in WORKS.items():
        turns = 2 if quick else max(20, min(100, 2000 // work.steps))
        results = race("training", work=name, steps=work.steps, whole=work.steps * (turns + 1), turns=turns)
        require_equal_losses(work.what, results)
        what = f"{work.what}: speed of"
        rows += compared(what, results, f"≥ {work.goal:.2f}", faster=True)
        rows.append(report.Row(f"{work.what}: a step by hand, CPU time", _column(results, "raw", "cpu", 1000), "ms"))
    return rows


def calls(folder: Path, quick: bool) -> list[report.Row]:
    """Counts the calls of Python functions in a step of the tiny MLP, with those of its data and of torch."""
    results = race("calling", turns=0)
    return [report.Row(f"tiny MLP: Python calls in a step, {loop}", [results[loop]], "") for loop in LOOPS]


def starting(folder: Path, quick: bool) -> list[report.Row]:
    """Measures the import and the first step of a new process. The loop by hand imports torch only."""
    environment, results = {**os.environ, **PINNED}, {loop: [] for loop in LOOPS}  # type: Any, Shown
    for number in range(1 if quick else ROUNDS):
        for loop in [*LOOPS[number % 4 :], *LOOPS[: number % 4]]:
            results[loop].append(start(loop, environment))
    rows: list[report.Row] = []
    for point, goal in {"import": "≤ 1.15", "step": "≤ 1.1"}.items():
        at = {
            loop: [{clock: turn[f"{clock} to {point}"] for clock in CLOCKS} for turn in results[loop]] for loop in LOOPS
        }
        what = "import of the trainer" if point == "import" else "cold process to first step"
        rows += compared(f"{what}:", at, goal)
        rows.append(report.Row(f"{what}: by hand, CPU time", _column(at, "raw", "cpu"), "s"))
    return rows


def resuming(folder: Path, quick: bool) -> list[report.Row]:
    """Measures a resume in the middle of an epoch, up to the next forward. All loops must read the same samples."""
    from bench.loops.resuming import STEPS, STOP, expected

    race("resuming", loops=["made"], turns=0, folder=str(folder))
    results = race("resuming", folder=str(folder), turns=3 if quick else 15)
    for loop in LOOPS:
        if any(turn["read"] != expected(folder) for turn in results[loop]):
            raise AssertionError(f"{loop} did not read the samples after step {STOP:,} when it resumed")
    what = f"resume at step {STOP:,} of {STEPS:,} to the next forward, data order equal:"
    return [*compared(what, results, "≤ 3"), report.Row(f"{what} by hand", _column(results, "raw", "wall", 1000), "ms")]


def evaluating(folder: Path, quick: bool) -> list[report.Row]:
    """Measures the evaluation of a small model with accuracy."""
    results = race("evaluating", work="mlp", samples=EVALUATED, batch=64, turns=2 if quick else 10)
    require_equal_findings(results)
    samples = [EVALUATED / turn["cpu"] for turn in results["raw"]]
    what = f"evaluate {EVALUATED:,} samples with accuracy:"
    rows = compared(f"{what} speed of", results, "≥ 0.95", faster=True)
    return [*rows, report.Row(f"{what} by hand, CPU time", samples, "samples/s")]


def memory(folder: Path, quick: bool) -> list[report.Row]:
    """Measures the peak memory of an evaluation, and for ours also with twice the samples."""
    count = SEQUENCES // 4 if quick else SEQUENCES
    what = f"evaluate GPT, {count:,} × 128 × 1,000 logits, memory"
    results = race("evaluating", work="gpt", samples=count, batch=32, memory=True, turns=1 if quick else 3)
    require_equal_findings(results)
    megabytes = {loop: [turn["bytes"] / 1e6 for turn in results[loop]] for loop in LOOPS}
    doubled_results = race("evaluating", work="gpt", samples=2 * count, batch=32, memory=True, turns=1, loops=["ours"])
    return [
        report.Row(f"{what}: by hand", megabytes["raw"], "MB"),
        *(report.Row(f"{what}: {loop}", megabytes[loop], "MB") for loop in OTHERS),
        report.Row(
            f"{what}: ours, relative to the loop by hand", _quotients(megabytes["ours"], megabytes["raw"]), "×", "≤ 1.2"
        ),
        report.Row(
            f"{what}: ours with twice as many samples, relative to ours",
            [turn["bytes"] / 1e6 / median(megabytes["ours"]) for turn in doubled_results["ours"]],
            "×",
            "flat",
        ),
    ]


def saving(folder: Path, quick: bool) -> list[report.Row]:
    """Measures how long the loop waits for a checkpoint, written in the background or by the loop itself."""
    from bench.loops.saving import COUNTED, LOOPS

    results = race("saving", folder=str(folder), turns=2 if quick else 5, loops=LOOPS)
    what = f"the loop waits for a checkpoint of {COUNTED}"
    rows = [report.Row(f"{what}: {loop}", _column(results, loop, "wall", 1000), "ms") for loop in LOOPS]
    for beside in ("ours", "raw"):
        waits = _quotients(_column(results, "ours, beside", "wall"), _column(results, beside, "wall"))
        name = "ours, synchronous" if beside == "ours" else "by hand, without a sync to disk"
        rows.append(
            report.Row(
                f"{what}: in the background, relative to {name}", waits, "×", "≤ 0.25" if beside == "ours" else ""
            )
        )
    return rows


PARTS: dict[str, Callable[[Path, bool], list[report.Row]]] = {
    "speed": speed,
    "calls": calls,
    "start": starting,
    "resume": resuming,
    "evaluate": evaluating,
    "memory": memory,
    "save": saving,
}


def compared(what: str, results: Shown, goal: str, *, faster: bool = False) -> list[report.Row]:
    """Returns rows with each loop's time, or with `faster` its speed, relative to the loop by hand.

    Each round counts with the median of its turns, so that a turn beside other work of the machine does not matter.
    """
    rows = []
    for loop in OTHERS:
        for clock, name in CLOCKS.items():
            other_rounds, raw_rounds = (
                _rounds(_column(results, name_of_loop, clock)) for name_of_loop in (loop, "raw")
            )
            values = _quotients(raw_rounds, other_rounds) if faster else _quotients(other_rounds, raw_rounds)
            rows.append(report.Row(f"{what} {loop}, {name}", values, "×", goal if loop == "ours" else ""))
    return rows


def require_equal_losses(what: str, results: Shown) -> None:
    logged = {loop: [loss for turn in results[loop] for loss in turn["losses"]] for loop in LOOPS}
    for loop, losses in logged.items():
        if len(losses) != len(logged["raw"]) or not all(
            abs(loss - by_hand) <= TOLERANCE * abs(by_hand) + 1e-4
            for loss, by_hand in zip(losses, logged["raw"], strict=True)
        ):
            raise AssertionError(
                f"{what}: {loop} logged other losses than the loop by hand, so it trained something else"
            )


def require_equal_findings(results: Shown) -> None:
    expected = results["raw"][0]["found"]
    for loop in LOOPS:
        for name, value in results[loop][0]["found"].items():
            if abs(value - expected[name]) > TOLERANCE * abs(expected[name]):
                raise AssertionError(f"{loop} found {name} {value}, and the loop by hand {expected[name]}")


def _column(results: Shown, loop: str, name: str, times: float = 1) -> list[float]:
    return [times * turn[name] for turn in results[loop]]


def _rounds(values: Sequence[float]) -> list[float]:
    size = max(1, len(values) // ROUNDS)
    return [median(values[start : start + size]) for start in range(0, len(values) - size + 1, size)]


def _quotients(of: Sequence[float], to: Sequence[float]) -> list[float]:
    return [above / below for above, below in zip(of, to, strict=True)]


if __name__ == "__main__":
    names = [word for word in sys.argv[1:] if not word.startswith("--")] or list(PARTS)
    with tempfile.TemporaryDirectory(prefix="fp-bench-loop-") as own_folder:
        print(report.table([row for name in names for row in PARTS[name](Path(own_folder), "--quick" in sys.argv)]))
