"""Every kind of data resumes at its exact position within an epoch, and no sample is read twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, WeightedRandomSampler, get_worker_info

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.collators import default_data_collator
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import Events, Fingerprint, StopAt, fingerprint

ROWS = [dict(row) for row in toy.regression(n=90)]


class Stream(IterableDataset[Any]):
    """A stream that can save its position, and logs every sample that is read.

    Each loader worker reads its own share of the samples.
    """

    def __init__(self, log: Path) -> None:
        self.log, self.at, self.start = log, 0, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        share = ROWS[info.id :: info.num_workers] if info else ROWS
        self.at, self.start = self.start, 0
        for row in share[self.at :]:
            self.at += 1
            with self.log.open("a") as file:
                file.write(".")
            yield row

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


def noisy(features: Any) -> dict[str, Any]:
    """A collator with random draws, like one that masks tokens."""
    batch = default_data_collator(features)
    return {**batch, "x": batch["x"] + 0.1 * torch.randn_like(batch["x"])}


class OwnOrder(Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return WeightedRandomSampler([1.0 + n for n in range(90)], 90)


def run(
    folder: Path, data: Any, *, stop_at: int | None = None, kind: Any = Trainer, collator: Any = None, **more: Any
) -> Fingerprint:
    values = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "max_steps": 22,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    resume, callbacks = more.pop("resume", False), more.pop("callbacks", [])
    args = TrainingArguments(str(folder), **{**values, **more})
    set_seed(7)
    events = Events()
    trainer = kind(
        toy.mlp(hidden=16, dropout=0.2),
        args,
        data_collator=collator,
        train_dataset=data,
        callbacks=[events, *([StopAt(stop_at)] if stop_at else []), *callbacks],
    )
    trainer.train(resume_from_checkpoint=resume)
    return fingerprint(trainer, events.losses)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("draws", "stop"), [("stream", 3), ("stream", 8), ("stream", 13), ("collator", 8), ("order", 11)]
)
def test_a_run_over_a_stream_or_random_draws_resumes_bit_identically(
    tmp_path: Path, draws: str, stop: int, workers: int
) -> None:
    """A pass over 90 samples has 8 steps, so step 13 is in the second pass."""

    def part(name: str, folder: str, **more: Any) -> Fingerprint:
        data = Stream(tmp_path / f"{name}.log") if draws == "stream" else ROWS
        own = {"collator": {"collator": noisy}, "order": {"kind": OwnOrder}}.get(draws, {})
        return run(tmp_path / folder, data, dataloader_num_workers=workers, **own, **more)

    whole = part("whole", "whole")
    part("before", "cut", stop_at=stop)
    after = part("after", "cut", resume=True)

    assert after.losses == whole.losses[stop:]
    assert (after.weights, after.rng) == (whole.weights, whole.rng)
    if draws == "stream" and not workers:
        read_counts = [len((tmp_path / f"{name}.log").read_text()) for name in ("whole", "before", "after")]
        assert read_counts[1] + read_counts[2] == read_counts[0], "no sample is read twice"


class FiveSteps(TrainerCallback):
    """Ends each epoch after five steps, although the data has eight."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_epoch_stop = state.global_step % 5 == 0


class Shorter(IterableDataset[Any]):
    """A stream with fewer samples than its length, such as a filtered one. An epoch has five steps instead of eight."""

    def __len__(self) -> int:
        return 90

    def __iter__(self) -> Iterator[Any]:
        return iter(ROWS[:60])


@pytest.mark.parametrize("stop", [5, 7, 10])
@pytest.mark.parametrize("ends", ["callback", "data"])
def test_a_run_whose_epochs_end_early_resumes_bit_identically(tmp_path: Path, ends: str, stop: int) -> None:
    def part(folder: str, **more: Any) -> Fingerprint:
        data, callbacks = (ROWS, [FiveSteps()]) if ends == "callback" else (Shorter(), [])
        return run(tmp_path / folder, data, callbacks=callbacks, **more)

    whole = part("whole")
    part("cut", stop_at=stop)
    after = part("cut", resume=True)

    assert len(whole.losses) == 15
    assert after.losses == whole.losses[stop:]
    assert (after.weights, after.rng) == (whole.weights, whole.rng)


def test_a_stream_with_persistent_loader_workers_resumes_bit_identically(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pass over 90 samples has 8 steps, so step 11 is in the second of three passes."""

    def part(folder: str, **more: Any) -> Fingerprint:
        stay = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
        return run(tmp_path / folder, Stream(tmp_path / "log"), collator=noisy, **stay, **more)

    whole = part("whole")
    part("cut", stop_at=11)
    after = part("cut", resume=True)

    assert after.losses == whole.losses[11:]
    assert after.weights == whole.weights
    assert caplog.text.count("dataloader_persistent_workers") == 3, "the warning is logged once in each training"


def test_resuming_a_stream_with_another_number_of_loader_workers_is_refused(tmp_path: Path) -> None:
    run(tmp_path, Stream(tmp_path / "log"), stop_at=3, dataloader_num_workers=2)

    with pytest.raises(ValueError, match="2 loading processes, but dataloader_num_workers is 1"):
        run(tmp_path, Stream(tmp_path / "log"), resume=True, dataloader_num_workers=1)


def test_a_run_with_save_in_background_resumes_bit_identically(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 4}
    whole = run(tmp_path / "whole", ROWS, **options)

    beside = run(tmp_path / "beside", ROWS, save_in_background=True, stop_at=12, **options)
    after = run(tmp_path / "beside", ROWS, resume=True, save_in_background=True, **options)

    assert beside.losses + after.losses == whole.losses
    assert (after.weights, after.optimizer, after.rng) == (whole.weights, whole.optimizer, whole.rng)
    assert sorted(path.name for path in (tmp_path / "beside").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )
