"""Measures a resume at step 5,000 of 12,500, in the middle of an epoch, up to the next forward.

The result of a turn has the time, and the samples that the next steps read.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from safetensors.torch import load_file
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from bench.loops.race import Clock, Turn, side
from bench.loops.scripted import arguments
from bench.loops.work import RATE, SEED, WORKS, Mlp, Rows, Sample, falling, groups, points_around_centres

WORK = WORKS["mlp"]
STEPS, STOP, SAMPLES = 12_500, 5_000, 100_000


class Enough(Exception):
    """Ends a training after three steps."""


class Watched(Mlp):
    """A model that records the time of its first forward, and ends training at the fourth."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.passes = Clock(), 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.passes += 1
        if self.passes == 1:
            self.took = self.clock.read()
        if self.passes == 4:
            raise Enough
        return super().forward(x, labels)


class Noted(Rows):
    """Rows that record which of them are read."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(**rows.columns)
        self.indices: list[int] = []

    def __getitem__(self, index: int) -> Sample:
        self.indices.append(index)
        return super().__getitem__(index)


def run(loop: str, turn: Turn, *, folder: str) -> None:
    if loop == "made":
        turn(make(Path(folder)))
        return
    data = Noted(points_around_centres(SAMPLES))
    resume, checkpoint = _own(loop, Path(folder), data)
    while True:
        data.indices.clear()
        model = Watched()
        try:
            resume(model, data, checkpoint)
        except Enough:
            turn({"wall": model.took[0], "cpu": model.took[1], "read": data.indices[: 3 * WORK.batch]})


def make(folder: Path) -> None:
    """Writes a checkpoint of ours, which transformers can read, and the samples that its run read next."""
    ours, data = side("ours"), Noted(points_around_centres(SAMPLES))

    class ReadOn(ours.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == STOP:
                data.indices.clear()
            control.should_training_stop |= state.global_step == STOP + 3

    args = _arguments(ours, folder / "made", save_strategy="steps", save_steps=STOP)
    ours.Trainer(WORK.fresh_model(), args, data_collator=WORK.collate, train_dataset=data, callbacks=[ReadOn()]).train()
    (folder / "expected.json").write_text(json.dumps(data.indices))


def expected(folder: Path) -> list[int]:
    """Returns the samples of the next three steps."""
    samples: list[int] = json.loads((folder / "expected.json").read_text())
    return samples


def _own(loop: str, folder: Path, data: Noted) -> tuple[Any, Path]:
    """Returns a function that resumes this loop, and its checkpoint: the same weights and moments in its own files."""
    source = folder / "made" / f"checkpoint-{STOP}"
    if loop == "raw":
        return _by_hand, _save_by_hand(source, folder / "raw.pt")
    if loop == "accelerate":
        _save_with_accelerate(source, folder / "accelerate", data)
        return _with_accelerate, folder / "accelerate"
    own = folder / loop / source.name
    shutil.copytree(source, own)
    return lambda model, data, checkpoint: _by_script(side(loop), model, data, checkpoint), own


def _save_by_hand(checkpoint: Path, path: Path) -> Path:
    optimizer = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    schedule = torch.load(checkpoint / "scheduler.pt", weights_only=False)
    schedule["lr_lambdas"] = [None for _ in schedule["lr_lambdas"]]
    model = load_file(checkpoint / "model.safetensors")
    rng = torch.get_rng_state()
    torch.save({"model": model, "optimizer": optimizer, "schedule": schedule, "rng": rng, "step": STOP}, path)
    return path


def _by_hand(model: Watched, data: Noted, checkpoint: Path) -> None:
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer = torch.optim.AdamW(groups(model), lr=RATE, fused=True)
    schedule = LambdaLR(optimizer, falling(STEPS))
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    epoch, batches = divmod(state["step"], len(data) // WORK.batch)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED + epoch))
    rest = order[batches * WORK.batch :].tolist()
    loader = DataLoader(data, WORK.batch, sampler=rest, collate_fn=WORK.collate)  # type: ignore[arg-type]
    torch.set_rng_state(state["rng"])
    _steps(model, optimizer, schedule, loader, lambda loss: loss.backward())


def _prepared(model: Watched, data: Noted) -> tuple[Accelerator, Any, Any, Any, Any]:
    order = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=SEED)
    accelerator = Accelerator(cpu=True, dataloader_config=order)
    optimizer = torch.optim.AdamW(groups(model), lr=RATE, fused=True)
    schedule = LambdaLR(optimizer, falling(STEPS))
    loader = DataLoader(data, WORK.batch, shuffle=True, collate_fn=WORK.collate)  # type: ignore[arg-type]
    return accelerator, *accelerator.prepare(model, optimizer, loader, schedule)


def _save_with_accelerate(checkpoint: Path, folder: Path, data: Noted) -> None:
    accelerator, model, optimizer, _, schedule = _prepared(Watched(), data)
    model.load_state_dict(load_file(checkpoint / "model.safetensors"))
    optimizer.optimizer.load_state_dict(torch.load(checkpoint / "optimizer.pt", weights_only=True))
    schedule.scheduler.last_epoch = STOP
    accelerator.save_state(str(folder))


def _with_accelerate(model: Watched, data: Noted, checkpoint: Path) -> None:
    accelerator, prepared, optimizer, loader, schedule = _prepared(model, data)
    accelerator.load_state(str(checkpoint))
    epoch, batches = divmod(STOP, len(data) // WORK.batch)
    loader.set_epoch(epoch)
    _steps(prepared, optimizer, schedule, skip_first_batches(loader, batches), accelerator.backward)


def _steps(model: Any, optimizer: Any, schedule: Any, loader: Any, backward: Any) -> None:
    model.train()
    for batch in loader:
        backward(model(**batch)["loss"])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def _by_script(side: Any, model: Watched, data: Noted, checkpoint: Path) -> None:
    args = _arguments(side, checkpoint.parent)
    trainer = side.Trainer(model, args, data_collator=WORK.collate, train_dataset=data)
    trainer.train(resume_from_checkpoint=str(checkpoint))


def _arguments(side: Any, folder: Path, **more: Any) -> Any:
    return arguments(side, str(folder), WORK, num_train_epochs=STEPS * WORK.batch / SAMPLES, logging_steps=1000, **more)
