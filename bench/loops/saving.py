"""Measures how long a loop waits for a checkpoint of 24 million parameters with their moments, some 290 MB.

A turn is one checkpoint. Ours is measured twice: `ours` writes the checkpoint before it continues, and `ours, beside`
copies the tensors and lets a thread write.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from bench.loops.race import Clock, Turn, side
from bench.loops.scripted import arguments
from bench.loops.work import WORKS, Mlp, groups, points_around_centres

LOOPS = ("raw", "accelerate", "transformers", "ours", "ours, beside")
WIDTH, COUNTED = 4900, "24 million parameters and their moments"


def run(loop: str, turn: Turn, *, folder: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        if loop in ("raw", "accelerate"):
            _by_hand(loop, turn, Path(own))
        else:
            _by_script(loop, turn, own)


def _by_hand(loop: str, turn: Turn, folder: Path) -> None:
    model = Mlp(WIDTH)
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3, fused=True)
    accelerator = Accelerator(cpu=True)
    if loop == "accelerate":
        model, optimizer = accelerator.prepare(model, optimizer)
    data = points_around_centres(8)
    for number in count():
        model(**data.columns)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        clock = Clock()
        if loop == "raw":
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "raw.pt")
        else:
            accelerator.save_state(str(folder / f"state-{number}"))
            shutil.rmtree(folder / f"state-{number - 1}", ignore_errors=True)
        turn(_shown(clock))


def _by_script(loop: str, turn: Turn, folder: str) -> None:
    names = side("ours" if loop.startswith("ours") else loop)
    beside = {"save_in_background": True} if loop == "ours, beside" else {}
    interval, clock, waited = 4, Clock(), [0.0, 0.0]

    class Waits(names.TrainerCallback):  # type: ignore[misc, name-defined]
        """Measures the time between two steps, in which the loop only saves a checkpoint."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            while beside and not control.should_save and _is_writing(trainer):
                time.sleep(0.01)  # as if there were enough steps between two checkpoints to write one
            clock.read()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            wall, cpu = clock.read()
            waited[0] += wall
            waited[1] += cpu
            if state.global_step % interval == interval - 1:
                if state.global_step > interval:
                    turn({"wall": waited[0], "cpu": waited[1]})
                waited[:] = 0.0, 0.0

    args = arguments(
        names, folder, WORKS["mlp"], max_steps=1000, save_strategy="steps", save_steps=interval, save_total_limit=1,
        logging_strategy="no", **beside
    )  # fmt: skip
    model, work = Mlp(WIDTH), WORKS["mlp"]
    trainer = names.Trainer(
        model, args, data_collator=work.collate, train_dataset=points_around_centres(), callbacks=[Waits()]
    )
    trainer.train()


def _is_writing(trainer: Any) -> bool:
    save = trainer._footplate.background
    return save is not None and not save.checkpoint.done()


def _shown(clock: Clock) -> dict[str, float]:
    wall, cpu = clock.read()
    return {"wall": wall, "cpu": cpu}
