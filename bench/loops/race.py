"""Runs several loops in turns.

Each loop is a process of its own. It works for its turn and then waits. So other work of the machine affects all loops
equally, and no loop sees the global state of another. On a CPU, they share one core, because two cores are never
equally busy. Their parent has then imported everything and run nothing. For a GPU, each loop imports for itself. Some
libraries open the GPU when they are imported, and the children of such a process cannot use the GPU.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

LOOPS = ("raw", "accelerate", "transformers", "ours")
Turn = Callable[[Any], None]
"""Sends the result of a turn, and waits for the next turn."""
PINNED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # glibc returns large blocks and requests them again at random, which costs milliseconds in a step of PointNet.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_OFFLINE": "1",
}


def race(
    task: str, *, turns: int, loops: Sequence[str] = LOOPS, on_one_core: bool = True, **options: Any
) -> dict[str, list[Any]]:
    """Returns the results of each loop, by turns. A loop runs `bench.loops.<task>.run(loop, turn, **options)`.

    If `turns` is 0, each loop has only one result.
    """
    parent = _parent(on_one_core)
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps({"task": task, "turns": turns, "loops": loops, "options": options}) + "\n")
    parent.stdin.flush()
    answer = parent.stdout.readline()
    if not answer:
        raise RuntimeError(f"one of {', '.join(loops)} ended too early in {task}: its output above has the reason")
    results: dict[str, list[Any]] = json.loads(answer)
    return results


@cache
def _parent(on_one_core: bool) -> subprocess.Popen[str]:
    """Starts the process that imports for all loops. It ends when its pipe is closed."""
    command = [sys.executable, "-m", "bench.loops.race", *(["on one core"] if on_one_core else [])]
    return subprocess.Popen(
        command, env={**os.environ, **PINNED}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class Clock:
    """Measures seconds since the last reading: wall time and CPU time."""

    def __init__(self) -> None:
        self.read()

    def read(self) -> tuple[float, float]:
        now = time.perf_counter(), time.process_time()
        before, self._before = getattr(self, "_before", now), now
        return now[0] - before[0], now[1] - before[1]


def side(loop: str) -> Any:
    """Returns the module with the names of transformers that a script uses."""
    return import_module("footplate" if loop == "ours" else loop)


class _Racer:
    def __init__(self, task: str, loop: str, options: dict[str, Any]) -> None:
        processes = multiprocessing.get_context("fork")
        self.connection, theirs = processes.Pipe()
        self.process = processes.Process(target=_work, args=(theirs, task, loop, options), daemon=True)
        self.process.start()
        theirs.close()

    def go(self) -> Any:
        self.connection.send("go")
        return self.connection.recv()

    def end(self) -> None:
        self.connection.send("end")
        self.process.join()


def _work(connection: Connection, task: str, loop: str, options: dict[str, Any]) -> None:
    def turn(result: Any) -> None:
        connection.send(result)
        if connection.recv() == "end":
            sys.exit()

    connection.recv()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        import_module(f"bench.loops.{task}").run(loop, turn, **options)


def _race(task: str, turns: int, loops: Sequence[str], options: dict[str, Any]) -> dict[str, list[Any]]:
    racers = {loop: _Racer(task, loop, options) for loop in loops}
    first = {loop: racer.go() for loop, racer in racers.items()}  # includes everything that is made only once
    results: dict[str, list[Any]] = {loop: [] for loop in loops}
    for number in range(turns):
        for loop in [*loops[number % len(loops) :], *loops[: number % len(loops)]]:
            results[loop].append(racers[loop].go())
    for racer in racers.values():
        racer.end()
    return results if turns else first


def _preload(loops: Sequence[str]) -> None:
    """Imports modules and starts no thread, because children of a process that has computed hang."""
    from footplate.trainer import preload

    preload()
    if "transformers" in loops:
        from transformers import BertForSequenceClassification, GPT2LMHeadModel, Trainer  # noqa: F401


if __name__ == "__main__":
    is_on_one_core = sys.argv[1:] == ["on one core"]
    if is_on_one_core:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for line in sys.stdin:
        arguments = json.loads(line)
        if is_on_one_core:
            _preload(arguments["loops"])
        print(json.dumps(_race(**arguments)), flush=True)
