"""Tests that models with peft's adapters train, are saved and are loaded as in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

import footplate
from footplate.components import toy
from footplate.trainer import adapters
from footplate.trainer import checkpoint as files
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import Events, StopAt, fingerprint
from tests.trainer import sides

ROWS = [{"input_ids": sentence[:4], "labels": sentence[:4]} for sentence in sides.sentences()]
SIDES = {"ours": footplate, "theirs": transformers}


def causal_lm(**options: Any) -> Any:
    """Returns a model with an adapter. The base model has the same weights in every call."""
    torch.manual_seed(1)
    values = {"r": 2, "lora_dropout": 0.1, "target_modules": ["c_attn"], "fan_in_fan_out": True, **options}
    return peft.get_peft_model(sides.gpt(), peft.LoraConfig(task_type="CAUSAL_LM", **values))


def a_trainer(side: Any, folder: Path, model: Any = None, **more: Any) -> Any:
    model = causal_lm() if model is None else model
    transformers.set_seed(5)
    values = {"save_strategy": "epoch", "eval_strategy": "epoch", "logging_steps": 1, **more}
    args = sides.arguments(side, folder, **values)
    return side.Trainer(model, args, train_dataset=ROWS, eval_dataset=ROWS[:5], processing_class=sides.tokenizer())


def outcome(trainer: Any) -> tuple[list[Any], dict[str, torch.Tensor], torch.Tensor]:
    history = [sides.common(sides.timeless(row)) for row in trainer.state.log_history]
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    return history, weights, torch.get_rng_state()


def assert_same_end(first: Any, other: Any) -> None:
    # The last log summarizes only the part that a Trainer ran itself, so it differs after a resume.
    assert first[0][:-1] == other[0][:-1]
    assert [name for name in first[1] if not first[1][name].equal(other[1][name])] == []
    assert first[2].equal(other[2])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Returns the folder and the outcome of an uninterrupted run of each library."""
    outcomes = {}
    for name, side in SIDES.items():
        folder = tmp_path_factory.mktemp(name)
        trainer = a_trainer(side, folder)
        trainer.train()
        outcomes[name] = (folder, outcome(trainer))
    return outcomes


def test_an_adapter_trains_and_is_saved_as_with_transformers(runs: Any) -> None:
    (ours, result), (theirs, reference) = runs["ours"], runs["theirs"]

    assert_same_end(result, reference)
    names = {path.name for path in (theirs / "checkpoint-6").iterdir()}
    assert names <= {path.name for path in (ours / "checkpoint-6").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= names
    assert not (ours / "checkpoint-6" / files.MODEL).exists()
    mine, yours = (load_file(folder / "checkpoint-6" / adapters.WEIGHTS) for folder in (ours, theirs))
    assert [name for name in yours if not yours[name].equal(mine[name])] == []


@pytest.mark.parametrize(("first", "second"), [("theirs", "ours"), ("ours", "theirs"), ("ours", "ours")])
def test_an_adapter_checkpoint_continues_under_either_library(
    tmp_path: Path, runs: Any, first: str, second: str
) -> None:
    folder, undisturbed = runs[first]

    after = a_trainer(SIDES[second], tmp_path)
    after.train(resume_from_checkpoint=str(folder / "checkpoint-6"))

    assert_same_end(outcome(after), undisturbed)


def test_the_best_adapter_is_loaded_at_the_end(tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "learning_rate": 3.0, "max_grad_norm": 0}
    trainer = a_trainer(footplate, tmp_path, num_train_epochs=3, optim="sgd", **best)
    trainer.train()

    assert trainer.state.best_global_step < trainer.state.global_step
    best_weights = load_file(Path(trainer.state.best_model_checkpoint) / adapters.WEIGHTS)
    weights = peft.get_peft_model_state_dict(trainer.model)
    assert [name for name in best_weights if not best_weights[name].equal(weights[name])] == []


def test_a_merged_model_loads_without_peft_and_gives_the_same_outputs(tmp_path: Path) -> None:
    trainer = a_trainer(footplate, tmp_path, num_train_epochs=1)
    trainer.train()
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}

    trainer.save_merged_model(str(tmp_path / "merged"))

    assert all(tensor.equal(before[name]) for name, tensor in trainer.model.state_dict().items())
    whole = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "merged").eval()
    words = torch.tensor([ROWS[0]["input_ids"]])
    torch.testing.assert_close(whole(words).logits, trainer.model.eval()(words).logits)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "merged").pad_token == "[PAD]"
    with pytest.raises(ValueError, match="a Mlp, has no adapters to merge"):
        Trainer(toy.mlp(), footplate.TrainingArguments(str(tmp_path))).save_merged_model(str(tmp_path / "x"))


class Plain(nn.Module):
    """A model with a batch norm, whose running mean changes, and a trained head. Only `body` has an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.norm(self.body(x)).relu())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def plain_run(folder: Path, *callbacks: Any, resume: bool = False, **values: Any) -> Any:
    torch.manual_seed(1)
    model = peft.get_peft_model(Plain(), peft.LoraConfig(r=2, lora_dropout=0.1, target_modules=["body"]))  # type: ignore[arg-type]
    model.base_model.model.head.requires_grad_(True)
    base = {"max_steps": 10, "learning_rate": 1e-2, "logging_steps": 1, "save_steps": 10, "disable_tqdm": True}
    set_seed(3)
    events = Events()
    args = footplate.TrainingArguments(str(folder), **{**base, **values})
    trainer = Trainer(model, args, train_dataset=toy.classification(n=42), callbacks=[events, *callbacks])
    trainer.train(resume_from_checkpoint=resume)
    return fingerprint(trainer, events.losses)


@pytest.mark.parametrize("in_background", [False, True])
def test_a_plain_module_with_an_adapter_resumes_bit_identically(tmp_path: Path, in_background: bool) -> None:
    whole = plain_run(tmp_path / "whole")
    plain_run(tmp_path / "cut", StopAt(4), save_in_background=in_background)

    after = plain_run(tmp_path / "cut", resume=True)

    assert after.losses == whole.losses[4:]
    assert (after.weights, after.optimizer, after.rng) == (whole.weights, whole.optimizer, whole.rng)
    saved_weights = load_file(tmp_path / "cut" / "checkpoint-4" / adapters.REST)
    assert any("running_mean" in name for name in saved_weights)
    assert any("head.weight" in name for name in saved_weights)
    assert not any("body" in name for name in saved_weights), "frozen weights are not saved in every checkpoint"


def test_several_adapters_of_one_model_are_saved_and_restored(tmp_path: Path) -> None:
    model = causal_lm()
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["c_proj"], fan_in_fan_out=True))
    model.set_adapter("second")
    a_trainer(footplate, tmp_path, model, num_train_epochs=1).train()

    other = causal_lm()
    other.add_adapter("second", peft.LoraConfig(r=2, target_modules=["c_proj"], fan_in_fan_out=True))
    files.load_weights(other, tmp_path / "checkpoint-6")

    own, other_weights = model.state_dict(), other.state_dict()
    assert [name for name in own if not own[name].equal(other_weights[name])] == []


COMPUTED: dict[str, tuple[Any, dict[str, Any]]] = {
    "VB-LoRA": (
        peft.VBLoRAConfig,
        {"target_modules": ["c_attn"], "fan_in_fan_out": True, "r": 2, "topk": 2, "save_only_topk_weights": True}
        | {"num_vectors": 8, "vector_length": 4},
    ),
    "prompt": (peft.PromptTuningConfig, {"num_virtual_tokens": 2}),
    "prefix": (peft.PrefixTuningConfig, {"num_virtual_tokens": 2, "prefix_projection": True}),
    "CPT": (
        peft.CPTConfig,
        {"cpt_token_ids": [7, 8], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 4]}
        | {"opt_projection_format_epsilon": 9.0},
    ),
}
"""Adapters whose stored tensors peft computes from the model's, with the options of each."""


def computed_by_peft(side: Any, folder: Path, kind: str, **more: Any) -> Any:
    config, options = COMPUTED[kind]
    torch.manual_seed(1)
    model = peft.get_peft_model(sides.gpt(), config(task_type="CAUSAL_LM", **options))
    return a_trainer(side, folder, model, **{"num_train_epochs": 2, "learning_rate": 0.1, **more})


@pytest.mark.parametrize("kind", ["VB-LoRA", "prompt"])
def test_an_adapter_that_peft_computes_is_saved_as_with_transformers(tmp_path: Path, kind: str) -> None:
    computed_by_peft(transformers, tmp_path / "theirs", kind).train()
    computed_by_peft(footplate, tmp_path / "ours", kind, save_in_background=True).train()

    ours, theirs = (load_file(tmp_path / name / "checkpoint-6" / adapters.WEIGHTS) for name in SIDES)
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if not theirs[name].equal(ours[name])] == []


@pytest.mark.parametrize("kind", COMPUTED)
def test_an_adapter_that_peft_computes_resumes_bit_identically(tmp_path: Path, kind: str) -> None:
    """Hugging Face's Trainer cannot resume some of these adapters. It trains others from the computed values."""
    whole = computed_by_peft(footplate, tmp_path, kind)
    whole.train()

    after = computed_by_peft(footplate, tmp_path / "after", kind)
    after.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))

    assert_same_end(outcome(after), outcome(whole))


def test_an_adapter_added_by_model_add_adapter_is_resumed(tmp_path: Path) -> None:
    """Hugging Face's Trainer saves such an adapter, but cannot load it again."""

    def model() -> Any:
        torch.manual_seed(1)
        gpt = sides.gpt()
        gpt.add_adapter(peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))  # type: ignore[operator]
        return gpt

    whole = a_trainer(footplate, tmp_path, model())
    whole.train()
    undisturbed = outcome(whole)

    after = a_trainer(footplate, tmp_path / "after", model())
    after.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))

    assert (tmp_path / "checkpoint-6" / adapters.WEIGHTS).exists()
    assert_same_end(outcome(after), undisturbed)


def test_an_adapter_of_another_kind_is_refused_by_name(tmp_path: Path, runs: Any) -> None:
    with pytest.raises(ValueError, match=r"checkpoint-6 belongs to another adapter or another model: .*lora"):
        files.load_weights(causal_lm(r=4), runs["ours"][0] / "checkpoint-6")

    a_trainer(footplate, tmp_path, num_train_epochs=1, save_only_model=True).train()
    with pytest.raises(ValueError, match=r"only a model.*save_only_model"):
        a_trainer(footplate, tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


def test_prompt_tuning_adapters_are_refused_for_a_sharded_model() -> None:
    tuned = peft.get_peft_model(sides.gpt(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))  # type: ignore[arg-type]

    adapters.require_places(causal_lm(), "Fsdp")
    with pytest.raises(ValueError, match=r"'default'.*PROMPT_TUNING.*DDP"):
        adapters.require_places(tuned, "Fsdp")
