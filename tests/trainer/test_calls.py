"""Limits the Python calls of a step. Hugging Face's Trainer makes 1,217 on a tiny model, an Accelerate loop 928."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.trainer import Trainer

OURS = str(Path(sys.modules["footplate.trainer"].__path__[0]))


class Calls(TrainerCallback):
    """Counts the Python calls of twenty steps, after the one-time work of the first steps."""

    def __init__(self) -> None:
        self.all = self.loop = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 20:
            sys.setprofile(self._count)
        if state.global_step == 40:
            sys.setprofile(None)

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self.all += 1
            self.loop += frame.f_code.co_filename.startswith(OURS) and "collators" not in frame.f_code.co_filename


def test_a_training_step_of_a_tiny_model_makes_few_python_calls(tmp_path: Path) -> None:
    """Measured in one epoch: 420 calls for each step. About 43 are in the loop, and nearly all others are in torch."""
    calls = Calls()
    args = TrainingArguments(
        str(tmp_path), max_steps=50, per_device_train_batch_size=32, save_strategy="no", disable_tqdm=True
    )

    Trainer(toy.mlp(), args, train_dataset=toy.regression(n=1600), callbacks=[calls]).train()

    assert calls.all / 20 < 460
    assert calls.loop / 20 < 45


def test_a_batch_of_an_evaluation_makes_few_python_calls(tmp_path: Path) -> None:
    """Measured: 203 calls for each batch, of which 28 are in Footplate."""
    args = TrainingArguments(str(tmp_path), per_device_eval_batch_size=32, disable_tqdm=True)
    trainer = Trainer(toy.mlp(), args, metrics=["accuracy"])
    sets = [toy.classification(n=32 * batches) for batches in (20, 40)]
    trainer.evaluate(sets[0])
    counted = []
    for data in sets:
        calls = Calls()
        sys.setprofile(calls._count)
        trainer.evaluate(data)
        sys.setprofile(None)
        counted.append(calls)

    assert (counted[1].all - counted[0].all) / 20 < 215
    assert (counted[1].loop - counted[0].loop) / 20 < 31
