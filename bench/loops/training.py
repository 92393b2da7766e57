"""Measures the training of a model. The result of a turn has the time of one step, and the losses that were logged."""

from __future__ import annotations

from bench.loops.race import Clock, Turn, side
from bench.loops.raw import Mark
from bench.loops.work import WORKS, Work


def run(loop: str, turn: Turn, *, work: str, steps: int, whole: int) -> None:
    losses: list[float] = []
    clock = Clock()

    def mark(step: int, loss: float) -> None:
        losses.append(loss)
        if step % steps == 0:
            wall, cpu = clock.read()
            turn({"wall": wall / steps, "cpu": cpu / steps, "losses": losses.copy()})
            losses.clear()
            clock.read()

    train(loop, WORKS[work], whole, mark)


def train(loop: str, work: Work, steps: int, mark: Mark) -> None:
    """Trains with one loop, and imports only that one, because the cost of imports is measured too."""
    if loop == "raw":
        from bench.loops import raw

        raw.train(work, steps, mark)
    elif loop == "accelerate":
        from bench.loops import accelerated

        accelerated.train(work, steps, mark)
    else:
        from bench.loops import scripted

        scripted.train(side(loop), work, steps, mark)
