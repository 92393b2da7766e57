"""A state that cannot be saved is reported before the first step."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import footplate
from footplate.components import toy
from footplate.trainer import trial_save
from footplate.trainer.checkpoint import CannotSave
from tests.support.training import Events
from tests.trainer import sides


class WithBuffer(type(toy.mlp())):  # type: ignore[misc]
    """An MLP to whose state `odd` adds a buffer."""


def odd(buffer: torch.Tensor) -> nn.Module:
    model = WithBuffer(8, 16, 2, 4, 0.0)
    model.register_buffer("more", buffer)
    return model  # type: ignore[no-any-return]


class Extra(WithBuffer):
    def get_extra_state(self) -> Any:
        return {"seen": 3}


def steps_before(folder: Path, error: type[Exception], match: str, model: nn.Module | None = None, **more: Any) -> int:
    """Expects this error in a training, and returns the number of steps before the error."""
    events, resume = Events(), more.pop("resume", False)
    values = {"max_steps": 4, "save_steps": 2, "disable_tqdm": True, **more}
    trainer = footplate.Trainer(
        model or toy.mlp(),
        footplate.TrainingArguments(str(folder), **values),
        train_dataset=toy.classification(n=16),
        callbacks=[events],
    )
    with pytest.raises(error, match=match):
        trainer.train(resume_from_checkpoint=resume)
    assert not list(folder.glob(".tmp-*"))
    return events.names.count("on_step_begin")


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (Extra(8, 16, 2, 4, 0.0), r"_extra_state of the model's state is a dict and not a tensor.*get_extra_state"),
        (odd(torch.eye(3).to_sparse()), r"more of the model's state is of the layout torch\.sparse_coo"),
        (odd(torch.zeros(3, dtype=torch.complex128)), r"cannot be saved, so training it would be useless"),
    ],
)
def test_a_state_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path: Path, model: Any, match: str) -> None:
    assert steps_before(tmp_path, ValueError, match, model) == 0


def test_the_trial_save_uses_save_pretrained_for_models_of_transformers(tmp_path: Path) -> None:
    """Otherwise, tied weights or an invalid generation config could make the first save fail, hours into the run."""
    model: Any = sides.bert("BertForSequenceClassification", num_labels=3)
    model.classifier.bias = nn.Parameter(torch.zeros(3))
    model.twin = nn.Linear(16, 3)
    model.twin.weight = model.classifier.weight
    trainer = footplate.Trainer(model, footplate.TrainingArguments(str(tmp_path), disable_tqdm=True))

    with pytest.raises(ValueError, match="shared tensors"):
        trial_save.try_saving(trainer, resumes=False)

    causal: Any = sides.gpt()
    causal.generation_config.temperature = 0.5  # invalid without do_sample
    trainer = footplate.Trainer(causal, footplate.TrainingArguments(str(tmp_path), disable_tqdm=True))
    with pytest.raises(ValueError, match="cannot be saved"):
        trial_save.try_saving(trainer, resumes=False)


def test_an_output_folder_that_is_not_writable_is_refused_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    assert steps_before(tmp_path / "file", CannotSave, "no checkpoint could be written to .*file") == 0


def test_too_little_disk_space_is_refused_for_a_new_run_but_not_for_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    footplate.Trainer(
        toy.mlp(),
        footplate.TrainingArguments(str(tmp_path), max_steps=2, disable_tqdm=True),
        train_dataset=toy.classification(n=16),
    ).train()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100}))

    assert steps_before(tmp_path / "new", CannotSave, "GB, but 0.0 GB are free at") == 0
    going_on = footplate.TrainingArguments(str(tmp_path), max_steps=3, disable_tqdm=True)
    resumed = footplate.Trainer(toy.mlp(), going_on, train_dataset=toy.classification(n=16))
    assert resumed.train(resume_from_checkpoint=True).global_step == 3


def test_a_resumed_run_is_not_ended_by_a_disk_that_is_full_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = footplate.Trainer(toy.mlp(), footplate.TrainingArguments(str(tmp_path), disable_tqdm=True))

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    trial_save.try_saving(trainer, resumes=True)
    assert "No space left on device" in caplog.text
    with pytest.raises(CannotSave, match="No space left on device"):
        trial_save.try_saving(trainer, resumes=False)


def test_an_argument_that_is_not_json_is_refused_before_the_first_step(tmp_path: Path) -> None:
    kwargs = {"num_cycles": torch.tensor(1)}
    args = {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": kwargs}

    assert steps_before(tmp_path, ValueError, "lr_scheduler_kwargs is stored in every checkpoint as JSON", **args) == 0


def test_the_trial_save_writes_few_bytes_and_draws_no_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def look(folder: Any, **how: Any) -> None:
        sizes.append(sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()))

    monkeypatch.setattr(shutil, "rmtree", look)
    big: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=64, n_head=2))
    before = torch.get_rng_state()
    trainer = footplate.Trainer(big, footplate.TrainingArguments(str(tmp_path), disable_tqdm=True))
    rng = torch.get_rng_state()

    trial_save.try_saving(trainer, resumes=False)

    assert sizes[0] < 10_000
    assert torch.get_rng_state().equal(rng)
    assert len(before) == len(rng)
    state = big.state_dict()
    stand_ins = trial_save.stand_ins(state)
    assert list(stand_ins) == list(state)
    assert stand_ins["lm_head.weight"] is stand_ins["transformer.wte.weight"]


def test_a_trainer_with_its_own_save_method_skips_the_trial_save(tmp_path: Path) -> None:
    class Own(footplate.Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            raise AssertionError("the trial save called _save of a subclass")

    args = footplate.TrainingArguments(str(tmp_path), disable_tqdm=True)
    trial_save.try_saving(Own(odd(torch.eye(3).to_sparse()), args), resumes=False)
