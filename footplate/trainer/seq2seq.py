"""Evaluation by generating: Seq2SeqTrainer and its five further arguments, with the reference's names and meaning."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import InstanceOf
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from footplate.contract.arguments.groups import CONFIG, Generation
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.metrics import TEXTS
from footplate.trainer.state import PredictionOutput
from footplate.trainer.trainer import Trainer


@dataclass(config=CONFIG)
class Seq2SeqTrainingArguments(Generation, TrainingArguments):
    """What a script hands to the Seq2SeqTrainer."""

    sortish_sampler: bool = False
    """Samples of like length in a batch, with a bit of chance: the same as train_sampling_strategy group_by_length."""
    generation_config: str | Path | InstanceOf[object] | None = None
    """A generation config, its folder, its file or its name; it replaces the model's."""

    def __post_init__(self) -> None:
        if self.sortish_sampler:
            if self.train_sampling_strategy not in ("random", "group_by_length"):
                raise ValueError(
                    f"sortish_sampler groups by length, and train_sampling_strategy is {self.train_sampling_strategy}: "
                    "leave one of them out"
                )
            self.train_sampling_strategy = "group_by_length"
        super().__post_init__()

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        config: Any = values.get("generation_config")
        return {**values, "generation_config": config.to_dict() if hasattr(config, "to_dict") else config}


class Seq2SeqTrainer(Trainer):
    """A Trainer that evaluates and predicts by `model.generate`, where `predict_with_generate` asks for that."""

    _gen_kwargs: dict[str, Any]

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: Any = (None, None),
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        **further: Any,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            model_init=model_init,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **further,
        )
        # Hugging Face's does so too, whether it generates or not.
        self._footplate.counts_full_batches = True
        if _generates(self.args):
            _require_generation(self)
        config = getattr(self.args, "generation_config", None)
        if config is not None:
            kind = type(getattr(self.model, "generation_config", None))
            self.model.generation_config = self.load_generation_config(config, kind)

    @staticmethod
    def load_generation_config(gen_config_arg: Any, kind: Any = None) -> Any:
        """A copy of a config, or the one that a file, a folder or a name holds. It is validated before a long run."""
        if hasattr(gen_config_arg, "to_dict"):
            config = copy.deepcopy(gen_config_arg)
        else:
            if not hasattr(kind, "from_pretrained"):
                from importlib import import_module

                # The extra hf: only who names a config by text needs it.
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
        """`gen_kwargs` go to `generate`, before what the arguments say."""
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
        """(loss, generated tokens, labels), both padded to one length so that batches join."""
        if not _generates(self.args) or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        labels = inputs.get("labels")
        tokens = _generated(self, inputs, _without_none(gen_kwargs or getattr(self, "_gen_kwargs", {})))
        longest = _longest(self.model)
        loss = None
        if labels is not None:
            # As any other evaluation has it. Generation says nothing about a loss.
            loss, _, _ = super().prediction_step(model, inputs, True)
        if self.args.prediction_loss_only:
            return loss, None, None
        return loss, _padded(self, tokens, longest), None if labels is None else _padded(self, labels, longest)

    def _pad_tensors_to_max_len(self, tensor: Tensor, max_length: int) -> Tensor:
        padded = tensor.new_full((tensor.shape[0], max_length), _pad_token(self))
        padded[:, : tensor.shape[-1]] = tensor
        return padded


def _generates(args: Any) -> bool:
    return bool(getattr(args, "predict_with_generate", False))


def _require_generation(trainer: Seq2SeqTrainer) -> None:
    if not callable(getattr(trainer.model, "generate", None)):
        raise ValueError(
            f"predict_with_generate calls model.generate, and {type(trainer.model).__name__} has none: give it one, "
            "or leave predict_with_generate out"
        )
    others = [metric for metric in trainer._footplate.metrics if metric not in TEXTS]
    if others:
        raise ValueError(
            f"{others[0]} is a metric of logits, and predict_with_generate yields tokens: hand in compute_metrics, "
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
    given = dict(inputs)
    if shifted is not None and "labels" in inputs and inputs["labels"].shape == shifted.shape:
        # These are made of the labels: generation would go on from the answer.
        given = {k: v for k, v in inputs.items() if k not in ("decoder_input_ids", "decoder_attention_mask")}
    options = {"synced_gpus": trainer._footplate.strategy.generates_in_step, **gen_kwargs}
    with torch.no_grad():
        tokens: Tensor = trainer.model.generate(**given, **options)  # type: ignore[operator]
    return tokens


def _longest(model: nn.Module) -> tuple[int | None, int | None]:
    """Returns (the longest that anything may be, the longest that may be generated), as the model's config says.

    transformers' configs get their defaults here, so that they do not read the model's own config at every batch.
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
    """Pads shorter sequences to the longest, so that batches join."""
    whole, fresh = longest
    length = tokens.shape[-1]
    if whole is not None and length < whole:
        return trainer._pad_tensors_to_max_len(tokens, whole)
    if fresh is not None and length < fresh + 1:
        return trainer._pad_tensors_to_max_len(tokens, fresh + 1)
    return tokens


def _pad_token(trainer: Seq2SeqTrainer) -> int:
    processor = trainer.processing_class
    if processor is not None and hasattr(processor, "pad_token_id"):
        number = processor.pad_token_id if processor.pad_token_id is not None else processor.eos_token_id
    else:
        number = getattr(getattr(trainer.model, "config", None), "pad_token_id", None)
    if number is None:
        raise ValueError("Pad_token_id must be set in the configuration of the model, in order to pad tensors")
    return int(number)


def _without_none(gen_kwargs: dict[str, Any]) -> dict[str, Any]:
    """`generate` itself would take a length or a number of beams that is None at its word."""
    return {
        name: value
        for name, value in gen_kwargs.items()
        if value is not None or name not in ("max_length", "num_beams")
    }
