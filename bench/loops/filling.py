"""Trains GPT-2 small in bf16, compiled, on one GPU. The result of a turn has a step's time and the device's memory.

Without a GPU, a tiny model of the same kind is trained, to show that all of this runs.
"""

from __future__ import annotations

from typing import Any

import torch

from bench.loops.race import Clock, Turn, side
from bench.loops.raw import Mark
from bench.loops.work import LOG_EVERY, Work, stack, tokens
from footplate.components import toy


def work() -> Work:
    if torch.cuda.is_available():
        sizes = {"vocab_size": 50_304, "layers": 12, "heads": 12, "width": 768, "context": 1024}
        data = lambda: tokens(4096, 50_304, 1024)  # noqa: E731
        return Work("GPT-2 small, bf16", 1.0, lambda: toy.gpt(**sizes), data, stack, batch=16, steps=2 * LOG_EVERY)
    sizes = {"vocab_size": 64, "layers": 1, "heads": 2, "width": 16, "context": 16}
    tiny = lambda: tokens(64, 64, 16)  # noqa: E731
    return Work("a tiny GPT on a CPU", 1.0, lambda: toy.gpt(**sizes), tiny, stack, batch=4, steps=LOG_EVERY)


def run(loop: str, turn: Turn, *, whole: int, compiles: bool) -> None:
    """Trains in turns. The first turn includes compilation."""
    task, clock = work(), Clock()
    tokens_per_turn = task.batch * task.fresh_model().context * task.steps  # type: ignore[operator]

    def mark(step: int, loss: float) -> None:
        if step % task.steps == 0:
            wall, cpu = clock.read()
            peak_bytes = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
            turn({"wall": wall, "cpu": cpu, "speed": tokens_per_turn / wall, "loss": loss, "bytes": peak_bytes})
            clock.read()

    train(loop, task, whole, mark, compiles=compiles)


def train(loop: str, task: Work, steps: int, mark: Mark, *, compiles: bool) -> None:
    if loop == "raw":
        from bench.loops import tuned

        tuned.train(task, steps, mark, compiles=compiles)
    else:
        from bench.loops import scripted

        on_gpu = torch.cuda.is_available()
        more: dict[str, Any] = {"bf16": on_gpu, "torch_compile": compiles, "use_cpu": not on_gpu}
        scripted.train(side(loop), task, steps, mark, **more)
