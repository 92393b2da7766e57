"""Tests that our Trainer continues checkpoints of Hugging Face's, and Hugging Face's continues ours.

Both continuations of a checkpoint must equal the uninterrupted run to the last bit.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import footplate
from footplate.contract.errors import CheckpointCorrupt
from footplate.trainer import checkpoint as files
from tests.trainer.sides import arguments, bert, common, sentences, timeless, tokenizer

SIDES = {"ours": footplate, "theirs": transformers}


def a_trainer(side: Any, folder: Path, model: nn.Module | None = None, **more: Any) -> Any:
    rows = [{"input_ids": sentence, "label": sentence[0] % 3} for sentence in sentences()]
    values = {"save_strategy": "epoch", "eval_strategy": "epoch", "num_train_epochs": 3, "logging_steps": 1, **more}
    return side.Trainer(
        model or bert("BertForSequenceClassification", num_labels=3),
        arguments(side, folder, **values),
        train_dataset=rows,
        eval_dataset=rows[:7],
        processing_class=tokenizer(),
    )


def outcome(trainer: Any) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor], torch.Tensor]:
    history = [common(timeless(row)) for row in trainer.state.log_history]
    return history, {name: value.clone() for name, value in trainer.model.state_dict().items()}, torch.get_rng_state()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Returns the folder and the outcome of an undisturbed run of transformers."""
    folder = tmp_path_factory.mktemp("theirs")
    transformers.set_seed(7)
    trainer = a_trainer(transformers, folder)
    trainer.train()
    return folder, outcome(trainer)


@pytest.mark.parametrize(("first", "second"), [("theirs", "ours"), ("ours", "theirs")])
def test_a_checkpoint_continues_under_either_library(tmp_path: Path, first: str, second: str) -> None:
    transformers.set_seed(7)
    whole = a_trainer(SIDES[first], tmp_path)
    whole.train()
    undisturbed = outcome(whole)

    transformers.set_seed(99)
    after = a_trainer(SIDES[second], tmp_path / "after")
    after.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))

    history, weights, random = outcome(after)
    # The last log summarizes only the part that a Trainer ran itself, so it differs after a resume.
    assert history[:-1] == undisturbed[0][:-1]
    assert [name for name in weights if not weights[name].equal(undisturbed[1][name])] == []
    assert random.equal(undisturbed[2])


def save_in_several_files(folder: Path, model: nn.Module) -> None:
    model.save_pretrained(folder, max_shard_size="8KB")  # type: ignore[operator]


def save_pickled(folder: Path, model: nn.Module) -> None:
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def save_pickled_in_several_files(folder: Path, model: nn.Module) -> None:
    parts: dict[str, dict[str, torch.Tensor]] = {"a.bin": {}, "b.bin": {}}
    for number, (name, value) in enumerate(model.state_dict().items()):
        parts["ab"[number % 2] + ".bin"][name] = value
    for file, part in parts.items():
        torch.save(part, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("save", [save_in_several_files, save_pickled, save_pickled_in_several_files])
def test_weights_in_any_file_format_of_transformers_are_resumed(tmp_path: Path, runs: Any, save: Any) -> None:
    folder, undisturbed = runs
    checkpoint = tmp_path / "checkpoint-6"
    shutil.copytree(folder / "checkpoint-6", checkpoint)
    whole = transformers.BertForSequenceClassification.from_pretrained(checkpoint)
    (checkpoint / files.MODEL).unlink()
    save(checkpoint, whole)
    assert not (checkpoint / files.MODEL).exists()

    after = a_trainer(footplate, tmp_path / "after")
    after.train(resume_from_checkpoint=str(checkpoint))

    _, weights, _ = outcome(after)
    assert [name for name in weights if not weights[name].equal(undisturbed[1][name])] == []


def test_a_checkpoint_with_several_weight_files_is_resumed_and_the_best_one_loaded(tmp_path: Path) -> None:
    """Large models have several weight files, because save_pretrained splits them."""

    class Large(footplate.Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            self.model.save_pretrained(output_dir, state_dict=state_dict, max_shard_size="8KB")  # type: ignore[operator]

    def large_trainer(folder: str, **more: Any) -> Any:
        values = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True, **more}
        torch.manual_seed(1)
        rows = [{"input_ids": sentence, "label": sentence[0] % 3} for sentence in sentences()]
        args = arguments(footplate, tmp_path / folder, learning_rate=3.0, optim="sgd", max_grad_norm=0, **values)
        model = bert("BertForSequenceClassification", num_labels=3)
        return Large(model, args, train_dataset=rows, eval_dataset=rows[:7], processing_class=tokenizer())

    whole = large_trainer("whole")
    whole.train()
    assert whole.state.best_global_step < whole.state.global_step
    best = transformers.BertForSequenceClassification.from_pretrained(whole.state.best_model_checkpoint).state_dict()
    assert [name for name, value in whole.model.state_dict().items() if not value.equal(best[name])] == []
    assert (tmp_path / "whole" / "checkpoint-6" / "model.safetensors.index.json").exists()

    resumed = large_trainer("whole")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    assert [name for name, value in resumed.model.state_dict().items() if not value.equal(best[name])] == []


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            {"weight_map": {"a": "gone.safetensors"}},
            r"gone\.safetensors is missing, but model\.safetensors\.index\.json",
        ),
        ({"weight_map": {"a": "../secret"}}, "names '../secret', which is not a file beside it"),
        ({"weight_map": 5}, "is not an index of weights"),
        ([], "is not an index of weights"),
    ],
)
def test_a_broken_index_of_weight_files_is_refused_by_name(tmp_path: Path, index: Any, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(CheckpointCorrupt, match=message):
        files.load_weights(nn.Linear(2, 2), tmp_path)


def test_a_pickle_that_would_execute_code_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": print}, tmp_path / "pytorch_model.bin")

    with pytest.raises(CheckpointCorrupt, match=r"pytorch_model\.bin.*weights only"):
        files.load_weights(nn.Linear(2, 2), tmp_path)


def test_an_incomplete_checkpoint_of_transformers_is_refused_by_name(tmp_path: Path) -> None:
    """Hugging Face's Trainer loads the files that exist, and silently resets the optimizer's moments."""
    a_trainer(transformers, tmp_path).train()
    (tmp_path / "checkpoint-6" / "rng_state.pth").unlink()

    with pytest.raises(CheckpointCorrupt, match=r"checkpoint-6.*rng_state\.pth"):
        a_trainer(footplate, tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


def test_saved_models_and_checkpoints_load_with_from_pretrained(tmp_path: Path) -> None:
    trainer = a_trainer(footplate, tmp_path, num_train_epochs=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))

    for folder in ("model", "checkpoint-6"):
        again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / folder)
        own, other_weights = trainer.model.state_dict(), again.state_dict()
        assert [name for name in own if not own[name].equal(other_weights[name])] == []
        assert transformers.AutoTokenizer.from_pretrained(tmp_path / folder).pad_token == "[PAD]"
