"""Tests the end of a training process: the final save, and a disk that is full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from footplate.contract.host import outcome
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.host.file_roots import Roots
from footplate.contract.lifecycle import StopMode
from footplate.runtime import run
from footplate.runtime.build import build
from footplate.trainer.callbacks import TrainerCallback
from tests.support.factories import make_spec


def test_a_full_disk_at_the_final_save_is_reported_with_path_and_hint(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, "job_1", 1)  # type: ignore[arg-type]

    def save_model(folder: str) -> None:
        Path(folder).mkdir(parents=True)
        (Path(folder) / "config.json").write_text("{}")
        with Path("/dev/full").open("w") as full:
            full.write("weights")

    state = SimpleNamespace(global_step=8, best_metric=None)
    trainer: Any = SimpleNamespace(model=None, processing_class=None, save_model=save_model, state=state)
    order: Any = SimpleNamespace(files=files, rank=0)
    emit: Any = SimpleNamespace(latest={"loss": 1.0})

    with pytest.raises(OSError, match="outputs") as failed:
        run.finish(trainer, make_spec(), order, emit)

    verdict = outcome.of_exception(failed.value)
    assert (verdict.reason, verdict.error.code) == ("error", "cannot_save")
    assert str(files.outputs) in verdict.error.message
    assert "[Errno 28]" in verdict.error.message
    assert verdict.error.hint
    assert not files.outputs.exists(), "incomplete outputs would use space on the full disk"


@pytest.mark.parametrize(("saves", "steps"), [("no", [3]), ("steps", [2, 3])])
def test_the_model_of_a_run_without_saves_is_saved_once_at_its_end(
    tmp_path: Path, saves: str, steps: list[int]
) -> None:
    spec = make_spec(training={"max_steps": 3, "save_strategy": saves, "save_steps": 2})
    args = replace(spec.training, output_dir=str(tmp_path), use_cpu=True)
    saved_steps: list[int] = []

    class Emit(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            saved_steps.append(state.global_step)

    trainer = run.assemble(spec, build(spec, Roots(tmp_path, tmp_path)), args, Emit(), {})  # type: ignore[arg-type]
    trainer.train()

    assert saved_steps == steps
    assert (tmp_path / "checkpoint-3").is_dir()


@pytest.mark.parametrize("event", ["on_step_end", "on_evaluate", "on_epoch_end"])
def test_a_run_without_saves_that_a_callback_ends_early_is_saved_once(tmp_path: Path, event: str) -> None:
    spec = make_spec(
        data={"train": "toy/regression", "eval": "toy/regression"},
        training={"max_steps": 999, "save_strategy": "no", "eval_strategy": "epoch"},
    )
    args = replace(spec.training, output_dir=str(tmp_path), use_cpu=True)
    saved_steps: list[int] = []

    class Emit(TrainerCallback):
        obeyed = None

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            saved_steps.append(state.global_step)

    def end(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = True

    ends_early = type("EndsEarly", (TrainerCallback,), {event: staticmethod(end)})()
    parts = replace(build(spec, Roots(tmp_path, tmp_path)), callbacks=[ends_early])
    trainer = run.assemble(spec, parts, args, Emit(), {})  # type: ignore[arg-type]
    trainer.train()

    assert saved_steps == [trainer.state.global_step]
    assert 0 < trainer.state.global_step < 999


def test_a_graceful_cancel_writes_no_checkpoint(tmp_path: Path) -> None:
    spec = make_spec(training={"max_steps": 999, "save_strategy": "no"})
    args = replace(spec.training, output_dir=str(tmp_path), use_cpu=True)

    class Emit(TrainerCallback):
        obeyed: StopMode | None = None

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.obeyed = StopMode.GRACEFUL
            control.should_training_stop = True

    trainer = run.assemble(spec, build(spec, Roots(tmp_path, tmp_path)), args, Emit(), {})  # type: ignore[arg-type]
    trainer.train()

    assert not (tmp_path / "checkpoint-1").exists()


@pytest.mark.parametrize(
    ("model", "data", "shifts"), [("toy/gpt", "toy/text", True), ("toy/mlp", "toy/classification", False)]
)
def test_a_named_loss_compares_with_the_next_label_if_the_model_predicts_it(
    tmp_path: Path, model: str, data: str, shifts: bool
) -> None:
    spec = make_spec(model=model, data=data, loss="cross_entropy")
    args = replace(spec.training, output_dir=str(tmp_path), use_cpu=True)

    trainer = run.assemble(spec, build(spec, Roots(tmp_path, tmp_path)), args, TrainerCallback(), {})  # type: ignore[arg-type]

    assert trainer.compute_loss_func.shifts_labels is shifts
