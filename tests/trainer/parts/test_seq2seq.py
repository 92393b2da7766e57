"""Evaluation by generating equals Hugging Face's. The same script gives the same texts and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

from footplate.trainer.collators import DataCollatorForSeq2Seq
from footplate.trainer.samplers import LengthGroupedSampler
from footplate.trainer.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments
from tests.trainer.parts.tokenizers import TEXTS, t5
from tests.trainer.sides import assert_same, on_both


def a_model() -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=len(t5()), d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=2, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, dropout_rate=0.1,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def rows() -> list[dict[str, Any]]:
    """Returns samples whose answer is the input, backwards."""
    encoded = [dict(t5()(text)) for text in TEXTS * 4]
    return [{**sample, "labels": [*sample["input_ids"][-2::-1], 1]} for sample in encoded]


def words(prediction: Any) -> dict[str, float]:
    tokens, labels = prediction.predictions, prediction.label_ids
    return {
        "length": float((tokens != 0).sum()),
        "first": float((tokens[:, 1] == labels[:, 0]).mean()),
        "width": float(tokens.shape[1] * 100 + labels.shape[1]),
    }


def script(side: Any, folder: Path, calls: dict[str, Any] | None = None, **values: Any) -> Any:
    if side.__name__ == "footplate":
        kind, arguments, collator = Seq2SeqTrainer, Seq2SeqTrainingArguments, side.DataCollatorForSeq2Seq
    else:
        kind, arguments, collator = side.Seq2SeqTrainer, side.Seq2SeqTrainingArguments, side.DataCollatorForSeq2Seq
    defaults: dict[str, Any] = {
        "predict_with_generate": True, "max_steps": 6, "eval_strategy": "steps", "eval_steps": 3, "logging_steps": 2,
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 3, "learning_rate": 3e-3, "report_to": "none",
        "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "seed": 3, "dataloader_pin_memory": False,
    }  # fmt: skip
    model = a_model()
    trainer = kind(
        model,
        arguments(str(folder), **{**defaults, **values}),
        data_collator=collator(t5(), model=model),
        train_dataset=rows(),
        eval_dataset=rows()[:7],
        processing_class=t5(),
        compute_metrics=words,
    )
    trainer.train()
    output = trainer.predict(rows()[3:8], **(calls or {}))
    return trainer, {**output.metrics, "texts": output.predictions.tolist(), "labels": output.label_ids.tolist()}


@pytest.mark.parametrize(
    ("values", "calls"),
    [
        ({}, {}),
        ({"generation_max_length": 9, "generation_num_beams": 2}, {}),
        ({"generation_max_length": 9}, {"max_length": 5, "num_beams": 3}),
        ({"generation_num_beams": 2}, {"max_new_tokens": 4}),
        ({"generation_config": GenerationConfig(max_new_tokens=6, decoder_start_token_id=0, pad_token_id=0)}, {}),
        ({"predict_with_generate": False, "prediction_loss_only": True}, None),
    ],
)
def test_a_seq2seq_script_generates_the_same_texts_as_with_transformers(
    tmp_path: Path, values: dict[str, Any], calls: Any
) -> None:
    if calls is None:
        return_loss_only(tmp_path, values)
        return
    ours, theirs = on_both(tmp_path, lambda side, folder: script(side, folder, calls, **values))

    assert ours.returned["texts"] == theirs.returned["texts"]
    assert_same(ours, theirs)
    assert {"eval_first", "eval_loss"} <= ours.history[2].keys() | ours.history[1].keys()


def return_loss_only(folder: Path, values: dict[str, Any]) -> None:
    def only(side: Any, where: Path) -> Any:
        kind, arguments = (
            (Seq2SeqTrainer, Seq2SeqTrainingArguments)
            if side.__name__ == "footplate"
            else (side.Seq2SeqTrainer, side.Seq2SeqTrainingArguments)
        )
        model = a_model()
        args = arguments(str(where), report_to="none", disable_tqdm=True, use_cpu=True, **values)
        collator = side.DataCollatorForSeq2Seq(t5(), model=model)
        trainer = kind(model, args, data_collator=collator, eval_dataset=rows()[:7], processing_class=t5())
        return trainer, trainer.evaluate()

    ours, theirs = on_both(folder, only)
    assert_same(ours, theirs)


def test_generation_arguments_that_are_none_use_the_generation_config(tmp_path: Path) -> None:
    """Subclasses pass generation arguments on even if these are None."""

    def step(side: Any, folder: Path) -> Any:
        is_ours = side.__name__ == "footplate"
        kind = Seq2SeqTrainer if is_ours else side.Seq2SeqTrainer
        arguments = Seq2SeqTrainingArguments if is_ours else side.Seq2SeqTrainingArguments
        model = a_model()
        model.generation_config = GenerationConfig(max_length=9, decoder_start_token_id=0, pad_token_id=0)
        args = arguments(str(folder), predict_with_generate=True, use_cpu=True, report_to="none")
        trainer = kind(model, args, processing_class=t5())
        model.eval()
        batch = side.DataCollatorForSeq2Seq(t5(), model=model)(rows()[:3])
        loss, tokens, labels = trainer.prediction_step(model, dict(batch), False, num_beams=None, max_length=None)
        return trainer, {"loss": loss.item(), "tokens": tokens.tolist(), "labels": labels.tolist()}

    ours, theirs = on_both(tmp_path, step)

    assert_same(ours, theirs)
    assert len(ours.returned["tokens"][0]) == 9


def test_a_generation_config_may_be_a_folder_or_a_file(tmp_path: Path) -> None:
    GenerationConfig(max_length=7, num_beams=2).save_pretrained(tmp_path)

    for where in (str(tmp_path), tmp_path, str(tmp_path / "generation_config.json")):
        assert Seq2SeqTrainer.load_generation_config(where, GenerationConfig).max_length == 7
    args = Seq2SeqTrainingArguments(str(tmp_path), generation_config=str(tmp_path), report_to="none", use_cpu=True)
    assert Seq2SeqTrainer(a_model(), args).model.generation_config.max_length == 7
    assert Seq2SeqTrainer.load_generation_config(str(tmp_path)).num_beams == 2


def test_an_invalid_generation_config_is_refused_before_training(tmp_path: Path) -> None:
    wrong = GenerationConfig(do_sample=False, temperature=0.5)
    with pytest.raises(ValueError, match="Fix these issues to train your model"):
        Seq2SeqTrainer(a_model(), Seq2SeqTrainingArguments(str(tmp_path), generation_config=wrong, use_cpu=True))


def test_arguments_with_a_generation_config_can_be_written_as_json(tmp_path: Path) -> None:
    args = Seq2SeqTrainingArguments(str(tmp_path), generation_config=GenerationConfig(max_length=7))

    assert args.to_dict()["generation_config"]["max_length"] == 7
    assert '"max_length": 7' in args.to_json_string()


def test_sortish_sampler_groups_samples_by_length(tmp_path: Path) -> None:
    args = Seq2SeqTrainingArguments(str(tmp_path), sortish_sampler=True, use_cpu=True, report_to="none")
    trainer = Seq2SeqTrainer(a_model(), args, train_dataset=rows())

    assert isinstance(trainer._get_train_sampler(rows()), LengthGroupedSampler)
    with pytest.raises(ValueError, match=r"sortish_sampler.*train_sampling_strategy"):
        Seq2SeqTrainingArguments(str(tmp_path), sortish_sampler=True, train_sampling_strategy="sequential")


class Echo(nn.Module):
    """A plain module with a generate method, without a config and without transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.weight.sum() * labels.float().mean(), "logits": input_ids}

    def generate(self, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        return input_ids + 1


def plain_rows(n: int = 5) -> list[dict[str, list[int]]]:
    return [{"input_ids": [at, at], "labels": [at, at]} for at in range(n)]


def test_a_plain_module_with_a_generate_method_is_evaluated_by_its_output(tmp_path: Path) -> None:
    args = Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, use_cpu=True, report_to="none")
    trainer = Seq2SeqTrainer(Echo(), args, eval_dataset=plain_rows(), compute_metrics=lambda prediction: {
        "off": float(numpy.abs(prediction.predictions - prediction.label_ids).mean())
    })  # fmt: skip

    assert trainer.evaluate()["eval_off"] == 1.0
    assert trainer.evaluate()["eval_loss"] == pytest.approx(2.0)


def test_predict_with_generate_is_refused_without_generate_or_with_logit_metrics(tmp_path: Path) -> None:
    args = Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, use_cpu=True, report_to="none")
    with pytest.raises(ValueError, match=r"calls model.generate, which Linear lacks"):
        Seq2SeqTrainer(nn.Linear(2, 2), args)
    with pytest.raises(ValueError, match=r"accuracy is a metric of logits.*predict_with_generate"):
        Seq2SeqTrainer(Echo(), args, metrics=["accuracy"])


def test_generated_tokens_are_compared_as_texts(tmp_path: Path) -> None:
    args = Seq2SeqTrainingArguments(
        str(tmp_path), predict_with_generate=True, metric_for_best_model="rouge1", use_cpu=True
    )
    model, words = a_model(), t5()
    trainer = Seq2SeqTrainer(
        model,
        args,
        data_collator=DataCollatorForSeq2Seq(words, model=model),
        eval_dataset=rows()[:7],
        processing_class=words,
        metrics=["rouge", "bleu"],
    )

    result = trainer.evaluate()

    assert {"eval_rouge1", "eval_rougeL", "eval_bleu", "eval_loss"} <= set(result)
