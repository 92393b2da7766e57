"""Runs a small model that has everything that a resume can restore wrongly. It is also a program."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import Events, Fingerprint, StopAt, fingerprint


def run(
    folder: Path,
    *,
    steps: int,
    resume: bool = False,
    stop_at: int | None = None,
    evaluate: bool = False,
    **arguments: object,
) -> Fingerprint:
    """Trains with dropout, accumulation 4, shuffling and a shorter last window, for more than two epochs."""
    values: dict[str, object] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "warmup_steps": 3,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        **arguments,
    }
    args = TrainingArguments(str(folder), max_steps=steps, **values)  # type: ignore[arg-type]
    set_seed(7)
    events = Events()
    trainer = Trainer(
        toy.mlp(hidden=16, dropout=0.2),
        args,
        train_dataset=toy.regression(n=150),
        eval_dataset=toy.regression(n=20, seed=1) if evaluate else None,
        callbacks=[events, *([StopAt(stop_at)] if stop_at else [])],
    )
    trainer.train(resume_from_checkpoint=resume)
    return fingerprint(trainer, events.losses)


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    print(json.dumps(dataclasses.asdict(run(Path(options.pop("folder")), **options))))
