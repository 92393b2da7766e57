"""Tests that a resumed run equals an undisturbed run: weights, optimizer, schedule, generators and losses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.collators import default_data_collator
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.template import run_after_imports
from tests.support.training import Events, Fingerprint, StopAt
from tests.trainer.runs import run

STEPS = 32
"""150 samples in batches of 4 with accumulation 4 are 10 steps an epoch, so these are more than three epochs."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Fingerprint:
    return run(tmp_path_factory.mktemp("undisturbed"), steps=STEPS)


@pytest.mark.parametrize("stop", [1, 3, 9, 10, 11, 17, 20, 31])
def test_a_run_resumed_at_any_step_is_bit_identical(tmp_path: Path, undisturbed: Fingerprint, stop: int) -> None:
    before = run(tmp_path, steps=STEPS, stop_at=stop)

    after = run(tmp_path, steps=STEPS, resume=True)

    assert before.losses == undisturbed.losses[:stop]
    assert after.losses == undisturbed.losses[stop:]
    assert (after.weights, after.optimizer, after.schedule, after.rng) == (
        undisturbed.weights,
        undisturbed.optimizer,
        undisturbed.schedule,
        undisturbed.rng,
    )


class OwnOrder(Sampler[int]):
    """A sampler with a generator that goes on from one epoch to the next, like TRL's for GRPO."""

    def __init__(self, size: int) -> None:
        self.size, self.generator = size, torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.size, generator=self.generator).tolist())


class OwnOrderTrainer(Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return OwnOrder(len(self.train_dataset))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [5, 6, 9])
def test_a_sampler_with_its_own_generator_continues_its_order_in_later_epochs(
    tmp_path: Path, stop: int, workers: int
) -> None:
    """A step has 4 of 24 samples, so the second epoch begins after step 6."""
    options = {"kind": OwnOrderTrainer, "samples": 24, "workers": workers}
    undisturbed = losses_of(tmp_path / "undisturbed", **options)

    before = losses_of(tmp_path, stop_at=stop, **options)

    assert before + losses_of(tmp_path, resume=True, **options) == undisturbed


def losses_of(
    folder: Path, *, kind: type[Trainer], samples: int, workers: int, resume: bool = False, **stop: Any
) -> list[float]:
    events = Events()
    args = TrainingArguments(
        str(folder), max_steps=14, per_device_train_batch_size=4, logging_steps=1, save_strategy="no",
        disable_tqdm=True, dataloader_num_workers=workers,
    )  # fmt: skip
    callbacks = [events, *(StopAt(step) for step in stop.values())]
    set_seed(7)
    trainer = kind(toy.mlp(hidden=4), args, train_dataset=toy.regression(n=samples), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return events.losses


def test_a_run_resumed_twice_in_one_epoch_is_bit_identical(tmp_path: Path, undisturbed: Fingerprint) -> None:
    run(tmp_path, steps=STEPS, stop_at=2)
    run(tmp_path, steps=STEPS, stop_at=6, resume=True)

    after = run(tmp_path, steps=STEPS, resume=True)

    assert after.losses == undisturbed.losses[6:]
    assert after.weights == undisturbed.weights


@pytest.mark.parametrize("evaluations", [{}, {"evaluate": True, "eval_strategy": "steps", "eval_steps": 2}])
def test_an_optimizer_that_counts_its_steps_in_its_groups_resumes_bit_identically(
    tmp_path: Path, evaluations: dict[str, Any]
) -> None:
    free = {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant", "warmup_steps": 6, **evaluations}
    undisturbed = run(tmp_path / "undisturbed", steps=8, **free)
    run(tmp_path, steps=8, stop_at=4, **free)

    after = run(tmp_path, steps=8, resume=True, **free)

    assert after.losses == undisturbed.losses[4:]
    assert (after.weights, after.optimizer) == (undisturbed.weights, undisturbed.optimizer)


def test_a_run_with_persistent_loader_workers_resumes_bit_identically(tmp_path: Path, undisturbed: Fingerprint) -> None:
    stay = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3}
    run(tmp_path, steps=STEPS, stop_at=13, **stay)

    after = run(tmp_path, steps=STEPS, resume=True, **stay)

    assert after.losses == undisturbed.losses[13:]
    assert after.weights == undisturbed.weights


def test_a_resume_in_a_new_process_with_loader_workers_is_bit_identical(
    tmp_path: Path, undisturbed: Fingerprint
) -> None:
    run(tmp_path, steps=STEPS, stop_at=13, dataloader_num_workers=2)

    after = run_in_a_new_process(tmp_path, steps=STEPS, resume=True, dataloader_num_workers=2)

    assert after.losses == undisturbed.losses[13:]
    assert (after.weights, after.optimizer, after.schedule, after.rng) == (
        undisturbed.weights,
        undisturbed.optimizer,
        undisturbed.schedule,
        undisturbed.rng,
    )


def test_evaluations_during_training_do_not_change_a_resumed_run(tmp_path: Path) -> None:
    evals = {"evaluate": True, "eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 5}
    whole = run(tmp_path / "whole", steps=20, **evals)
    run(tmp_path / "cut", steps=20, stop_at=5, **evals)

    after = run(tmp_path / "cut", steps=20, resume=True, **evals)

    assert after.weights == whole.weights
    assert after.rng == whole.rng


@pytest.mark.parametrize(
    ("stop", "more"),
    [
        (10, {}),
        (10, {"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss", "warmup_steps": 0}),
        (24, {"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss", "warmup_steps": 0}),
    ],
)
def test_a_resume_after_the_last_step_of_an_epoch_makes_up_for_its_evaluation(
    tmp_path: Path, stop: int, more: dict[str, Any]
) -> None:
    """The checkpoint was saved after the step, before the evaluation, which draws numbers and may change the rate."""
    options = {"steps": 24, "evaluate": True, "eval_strategy": "epoch", **more}
    undisturbed = run(tmp_path / "undisturbed", **options)
    run(tmp_path, stop_at=stop, **options)

    after = run(tmp_path, resume=True, **options)

    assert (after.weights, after.schedule, after.rng) == (undisturbed.weights, undisturbed.schedule, undisturbed.rng)


def test_a_resume_after_the_end_of_the_last_epoch_evaluates_nothing(tmp_path: Path) -> None:
    args = TrainingArguments(
        str(tmp_path), num_train_epochs=2, eval_strategy="epoch", save_strategy="epoch", disable_tqdm=True
    )
    for resume in (False, True):
        events = Events()
        trainer = Trainer(
            toy.mlp(hidden=4), args, train_dataset=toy.regression(n=32), eval_dataset=toy.regression(n=8),
            callbacks=[events],
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)

    assert not {"on_evaluate", "on_save"} & set(events.names)


def test_a_resumed_run_counts_the_operations_since_the_last_log(tmp_path: Path) -> None:
    class OneEachStep(Trainer):
        def floating_point_ops(self, inputs: Any) -> int:
            return 1

    def operations(*, resume: bool = False, stop_at: int | None = None) -> float:
        args = TrainingArguments(str(tmp_path), max_steps=6, logging_steps=5, save_strategy="no", disable_tqdm=True)
        callbacks = [StopAt(stop_at)] if stop_at else []
        trainer = OneEachStep(toy.mlp(), args, train_dataset=toy.regression(n=64), callbacks=callbacks)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.state.total_flos

    assert operations(stop_at=3) == 3
    assert operations(resume=True) == 6


def test_a_run_may_be_resumed_with_more_steps_and_new_intervals(tmp_path: Path) -> None:
    run(tmp_path, steps=10, save_strategy="steps", save_steps=5)

    longer = run(tmp_path, steps=14, resume=True, logging_steps=2, learning_rate=1e-3)

    assert len(longer.losses) == 2


def test_resuming_with_another_data_order_is_refused(tmp_path: Path) -> None:
    run(tmp_path, steps=2, save_strategy="steps", save_steps=2)

    with pytest.raises(ValueError, match=r"seed was 42 and is 43.*ignore_data_skip"):
        run(tmp_path, steps=4, resume=True, seed=43)


def samples_of(folder: Path, batch_size: int, accumulation: int, *, stop_at: int | None = None, **more: Any) -> Any:
    """Trains three epochs of 22 samples, and returns the samples in their order and the Trainer."""
    samples: list[int] = []

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        samples.extend(row["number"] for row in rows)
        return default_data_collator([{name: row[name] for name in ("x", "labels")} for row in rows])

    rows = toy.regression(n=22)
    data = [{**rows[number], "number": number} for number in range(22)]
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation,
        disable_tqdm=True, remove_unused_columns=False, save_strategy="no", **more,
    )  # fmt: skip
    trainer = Trainer(
        toy.mlp(), args, collate, train_dataset=data, callbacks=[StopAt(stop_at)] if stop_at is not None else []
    )
    trainer.train(resume_from_checkpoint=bool(list(folder.glob("checkpoint-*"))))
    return samples, trainer


@pytest.fixture(scope="module")
def all_samples(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Returns the samples of an undisturbed run, in their order."""
    return list(samples_of(tmp_path_factory.mktemp("whole"), 2, 2)[0])


@pytest.mark.parametrize(
    ("stop", "sample_count", "batch_size", "accumulation"),
    [
        (1, 4, 5, 1),
        (3, 12, 5, 1),
        (3, 12, 16, 1),
        (6, 22, 3, 2),
        (8, 30, 3, 2),
        (8, 30, 1, 1),
        (8, 30, 16, 1),
        (12, 44, 16, 1),
    ],
)
def test_a_resume_with_another_batch_size_continues_at_the_next_sample(
    tmp_path: Path, all_samples: list[int], stop: int, sample_count: int, batch_size: int, accumulation: int
) -> None:
    """An epoch has 22 samples, so some of the stops are within an epoch and others between two epochs."""
    samples_of(tmp_path, 2, 2, stop_at=stop)

    rest, trainer = samples_of(tmp_path, batch_size, accumulation)

    assert rest == all_samples[sample_count:]
    assert trainer.state.global_step == trainer.state.max_steps
    assert trainer.state.epoch == 3


def test_a_second_resume_with_another_batch_size_continues_at_the_next_sample(
    tmp_path: Path, all_samples: list[int]
) -> None:
    samples_of(tmp_path, 2, 2, stop_at=1)
    middle, _ = samples_of(tmp_path, 5, 1, stop_at=3)
    later, _ = samples_of(tmp_path, 5, 1, stop_at=6)

    rest, trainer = samples_of(tmp_path, 5, 1)

    assert all_samples[:4] + middle + later + rest == all_samples
    assert trainer.state.global_step == trainer.state.max_steps


def test_max_steps_is_kept_on_a_resume_with_another_batch_size(tmp_path: Path) -> None:
    samples_of(tmp_path, 2, 2, stop_at=5)

    rest, trainer = samples_of(tmp_path, 11, 1, max_steps=9)

    assert trainer.state.global_step == 9
    assert len(rest) == 2 + 11 + 11 + 11


def run_in_a_new_process(folder: Path, **options: object) -> Fingerprint:
    request = json.dumps({"folder": str(folder), **options})
    return Fingerprint(**json.loads(run_after_imports("-m", "tests.trainer.runs", request).splitlines()[-1]))
