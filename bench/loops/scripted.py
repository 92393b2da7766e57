"""A script for transformers' Trainer or ours. `side` is the module that has the names."""

from __future__ import annotations

import tempfile
from typing import Any

from bench.loops.raw import Mark
from bench.loops.work import DECAY, LOG_EVERY, RATE, SEED, Work


def arguments(side: Any, folder: str, work: Work, **more: Any) -> Any:
    return side.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=work.batch,
        gradient_accumulation_steps=work.accumulate,
        learning_rate=RATE,
        weight_decay=DECAY,
        seed=SEED,
        report_to="none",
        disable_tqdm=True,
        **{"logging_steps": LOG_EVERY, "save_strategy": "no", "use_cpu": True, **more},
    )


def train(side: Any, work: Work, steps: int, mark: Mark, **more: Any) -> None:
    class Marks(side.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if "loss" in logs:
                mark(state.global_step, float(logs["loss"]))

    with tempfile.TemporaryDirectory() as folder:
        side.Trainer(
            work.fresh_model(),
            arguments(side, folder, work, max_steps=steps, **more),
            data_collator=work.collate,
            train_dataset=work.data(),
            callbacks=[Marks()],
        ).train()
