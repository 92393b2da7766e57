"""A run that was stopped and resumed is the same run: weights, optimizer, schedule, generators and the next losses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from footplate.trainer.testing import Fingerprint
from tests.trainer.runs import run

STEPS = 32
"""150 samples in batches of 4 with accumulation 4 are 10 steps an epoch, so this is three epochs and a bit."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Fingerprint:
    return run(tmp_path_factory.mktemp("undisturbed"), steps=STEPS)


@pytest.mark.parametrize("stop", [1, 3, 9, 10, 11, 17, 20, 31])
def test_a_run_resumed_at_any_step_is_the_same_run(tmp_path: Path, undisturbed: Fingerprint, stop: int) -> None:
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


def test_a_run_resumed_twice_in_the_same_epoch_is_the_same_run(tmp_path: Path, undisturbed: Fingerprint) -> None:
    run(tmp_path, steps=STEPS, stop_at=2)
    run(tmp_path, steps=STEPS, stop_at=6, resume=True)

    after = run(tmp_path, steps=STEPS, resume=True)

    assert after.losses == undisturbed.losses[6:]
    assert after.weights == undisturbed.weights


def test_loading_processes_that_stay_resume_as_the_same_run(tmp_path: Path, undisturbed: Fingerprint) -> None:
    stay = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3}
    run(tmp_path, steps=STEPS, stop_at=13, **stay)

    after = run(tmp_path, steps=STEPS, resume=True, **stay)

    assert after.losses == undisturbed.losses[13:]
    assert after.weights == undisturbed.weights


def test_a_resume_in_a_fresh_process_with_loading_processes_is_the_same_run(
    tmp_path: Path, undisturbed: Fingerprint
) -> None:
    run(tmp_path, steps=STEPS, stop_at=13, dataloader_num_workers=2)

    after = in_a_fresh_process(tmp_path, steps=STEPS, resume=True, dataloader_num_workers=2)

    assert after.losses == undisturbed.losses[13:]
    assert (after.weights, after.optimizer, after.schedule, after.rng) == (
        undisturbed.weights,
        undisturbed.optimizer,
        undisturbed.schedule,
        undisturbed.rng,
    )


def test_evaluating_on_the_way_does_not_make_the_resumed_run_another(tmp_path: Path) -> None:
    evals = {"evaluate": True, "eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 5}
    whole = run(tmp_path / "whole", steps=20, **evals)
    run(tmp_path / "cut", steps=20, stop_at=5, **evals)

    after = run(tmp_path / "cut", steps=20, resume=True, **evals)

    assert after.weights == whole.weights
    assert after.rng == whole.rng


def test_a_longer_run_may_follow_with_new_intervals(tmp_path: Path) -> None:
    run(tmp_path, steps=10, save_strategy="steps", save_steps=5)

    longer = run(tmp_path, steps=14, resume=True, logging_steps=2, learning_rate=1e-3)

    assert len(longer.losses) == 2


def test_what_would_move_the_place_in_the_data_is_refused(tmp_path: Path) -> None:
    run(tmp_path, steps=4, save_strategy="steps", save_steps=2)

    with pytest.raises(ValueError, match=r"gradient_accumulation_steps was 4 and is 2.*ignore_data_skip"):
        run(tmp_path, steps=8, resume=True, gradient_accumulation_steps=2)


def in_a_fresh_process(folder: Path, **options: object) -> Fingerprint:
    asked = json.dumps({"folder": str(folder), **options})
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.runs", asked], capture_output=True, text=True, check=True, timeout=600
    )
    return Fingerprint(**json.loads(done.stdout.splitlines()[-1]))
