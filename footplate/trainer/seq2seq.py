"""Evaluation by generating text: Seq2SeqTrainer and its five further arguments, as in Hugging Face's library."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from pydantic import InstanceOf
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from footplate.contract.arguments.argument_fields import CONFIG, GenerationFields
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.metrics.third_party import TEXTS
from footplate.trainer.state import PredictionOutput
from footplate.trainer.trainer import Trainer


@dataclass(config=CONFIG)
class Seq2SeqTrainingArguments(GenerationFields, TrainingArguments):
    """The arguments that a script passes to the Seq2SeqTrainer."""

    sortish_sampler: bool = False
    """Puts samples of similar length into a batch, like train_sampling_strategy group_by_length."""
    generation_config: str | Path | InstanceOf[object] | None = None
    """A generation config, or its folder, file or name. It replaces the model's config."""

    def __post_init__(self) -> None:
        if self.sortish_sampler:
            if self.train_sampling_strategy not in ("random", "group_by_length"):
                raise ValueError(
                    f"sortish_sampler groups by length, but train_sampling_strategy is {self.train_sampling_strategy}: "
                    "leave one of them out"
                )
            self.train_sampling_strategy = "group_by_length"
        super().__post_init__()

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        config: Any = values.get("generation_config")
        return {**values, "generation_config": config.to_dict() if hasattr(config, "to_dict") else config}


class Seq2SeqTrainer(Trainer):
    """A Trainer that evaluates and predicts with `model.generate` if `predict_with_generate` is set."""

    _gen_kwargs: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Hugging Face's Seq2SeqTrainer counts a smaller last batch as a full one, even if it does not generate.
        self._footplate.counts_full_batches = True
        if _generates(self.args):
            _require_generation(self)
        config = getattr(self.args, "generation_config", None)
        if config is not None:
            kind = type(getattr(self.model, "generation_config", None))
            self.model.generation_config = self.load_generation_config(config, kind)

    @staticmethod
    def load_generation_config(gen_config_arg: Any, kind: Any = None) -> Any:
        """Returns a validated generation config: a copy of the given one, or the one in a file, folder or hub model."""
        if hasattr(gen_config_arg, "to_dict"):
            config = copy.deepcopy(gen_config_arg)
        else:
            if not hasattr(kind, "from_pretrained"):
                from importlib import import_module

                # transformers is an extra, needed only for a config that is named by text.
                kind = import_module("transformers").GenerationConfig
            path = Path(gen_config_arg)
            config = (
                kind.from_pretrained(path.parent, path.name) if path.is_file() else kind.from_pretrained(gen_config_arg)
            )
        validate = getattr(config, "validate", None)
        if validate is not None:
            try:
                validate(strict=True)
            except ValueError as error:
                raise ValueError(f"{error}\n\nFix these issues to train your model.") from error
        return config

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluates with `gen_kwargs` for `generate`, which take precedence over the arguments."""
        self._gen_kwargs = _with_defaults(self.args, gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        self._gen_kwargs = _with_defaults(self.args, gen_kwargs)
        return super().predict(test_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Tensor | None, Any, Any]:
        """Returns loss, generated tokens and labels. Tokens and labels are padded, so that batches can be joined."""
        if not _generates(self.args) or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        labels = inputs.get("labels")
        options = gen_kwargs or getattr(self, "_gen_kwargs", {})
        # `generate` would use None instead of its default.
        unset = {name for name in ("max_length", "num_beams") if options.get(name) is None}
        tokens = _generated(self, inputs, {name: value for name, value in options.items() if name not in unset})
        longest = _longest(self.model)
        loss = None
        if labels is not None:
            # Generating computes no loss, so it is computed as in any other evaluation.
            loss, _, _ = super().prediction_step(model, inputs, True)
        if self.args.prediction_loss_only:
            return loss, None, None
        return loss, _padded(self, tokens, longest), None if labels is None else _padded(self, labels, longest)

    def _pad_tensors_to_max_len(self, tensor: Tensor, max_length: int) -> Tensor:
        processor, config = self.processing_class, getattr(self.model, "config", None)
        number = getattr(config, "pad_token_id", None)
        if processor is not None and hasattr(processor, "pad_token_id"):
            number = processor.pad_token_id if processor.pad_token_id is not None else processor.eos_token_id
        if number is None:
            raise ValueError("Pad_token_id must be set in the configuration of the model, in order to pad tensors")
        padded = tensor.new_full((tensor.shape[0], max_length), int(number))
        padded[:, : tensor.shape[-1]] = tensor
        return padded


def _generates(args: Any) -> bool:
    return bool(getattr(args, "predict_with_generate", False))


def _require_generation(trainer: Seq2SeqTrainer) -> None:
    if not callable(getattr(trainer.model, "generate", None)):
        raise ValueError(
            f"predict_with_generate calls model.generate, which {type(trainer.model).__name__} lacks: add one, "
            "or leave predict_with_generate out"
        )
    of_logits = [metric for metric in trainer._footplate.metrics if metric not in TEXTS]
    if of_logits:
        raise ValueError(
            f"{of_logits[0]} is a metric of logits, but predict_with_generate returns tokens: pass compute_metrics, "
            f"or use {', '.join(TEXTS)}"
        )


def _with_defaults(args: Any, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
    options = dict(gen_kwargs)
    longest, beams = (getattr(args, f"generation_{name}", None) for name in ("max_length", "num_beams"))
    if options.get("max_length") is None and options.get("max_new_tokens") is None and longest is not None:
        options["max_length"] = longest
    if options.get("num_beams") is None and beams is not None:
        options["num_beams"] = beams
    return options


def _generated(trainer: Seq2SeqTrainer, inputs: dict[str, Any], gen_kwargs: dict[str, Any]) -> Tensor:
    shifted = inputs.get("decoder_input_ids")
    generate_inputs = dict(inputs)
    if shifted is not None and "labels" in inputs and inputs["labels"].shape == shifted.shape:
        # Leaves out decoder inputs that were made from the labels, because they contain the answer.
        generate_inputs = {k: v for k, v in inputs.items() if k not in ("decoder_input_ids", "decoder_attention_mask")}
    # A sharded model needs every process in each forward, until the texts of all have ended.
    options = {"synced_gpus": not trainer._footplate.strategy.holds_whole, **gen_kwargs}
    with torch.no_grad():
        tokens: Tensor = trainer.model.generate(**generate_inputs, **options)  # type: ignore[operator]
    return tokens


def _longest(model: nn.Module) -> tuple[int | None, int | None]:
    """Returns the maximum length and the maximum number of new tokens, from the model's generation config.

    Defaults are filled in here, so that transformers does not read the model's own config for every batch.
    """
    config: Any = getattr(model, "generation_config", None)
    if config is None:
        return None, None
    if getattr(config, "_from_model_config", False):
        config._from_model_config = False
    defaults: Any = getattr(config, "_get_default_generation_params", None)
    if defaults is not None:
        config.update(**defaults(), defaults_only=True)
    return config.max_length, getattr(config, "max_new_tokens", None)


def _padded(trainer: Seq2SeqTrainer, tokens: Tensor, longest: tuple[int | None, int | None]) -> Tensor:
    """Pads shorter sequences to the maximum length, so that batches can be joined."""
    max_length, max_new_tokens = longest
    length = tokens.shape[-1]
    if max_length is not None and length < max_length:
        return trainer._pad_tensors_to_max_len(tokens, max_length)
    if max_new_tokens is not None and length < max_new_tokens + 1:
        return trainer._pad_tensors_to_max_len(tokens, max_new_tokens + 1)
    return tokens
