"""Adapts metrics of torchmetrics, also those of texts, and of Hugging Face's evaluate to `BatchMetric`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from footplate.contract.errors import UnknownComponent
from footplate.trainer.losses.labels import IGNORE

PREFIX = "torchmetrics/"
_SEVERAL_TARGETS = ("BLEUScore", "SacreBLEUScore", "CHRFScore")
TEXTS = {"bleu": "BLEUScore", "sacrebleu": "SacreBLEUScore", "rouge": "ROUGEScore", "chrf": "CHRFScore"}


class TorchMetric:
    """A metric of torchmetrics, by class name or as an object. A class gets its number of classes from a batch."""

    def __init__(self, metric: Any, **options: Any) -> None:
        is_name = isinstance(metric, str)
        self._kind = _named(metric) if is_name else type(metric)
        self._made: Any = None if is_name else metric
        self._options = options
        self.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self._kind.__name__).lower()

    def update(self, logits: Tensor, labels: Tensor) -> None:
        if self._made is None:
            self._made = self._kind(**{**_about_classes(self._kind, logits, labels), **self._options})
        # Each process already has the outputs of all processes, so torchmetrics must not add them up once more.
        self._made.sync_on_compute = False
        self._made.to(logits.device).update(*_inputs_for(type(self._made), logits, labels))

    def compute(self) -> dict[str, float]:
        if self._made is None:
            return {self.name: float("nan")}
        result = self._made.compute()
        if isinstance(result, Mapping):
            return {str(name): float(value) for name, value in result.items()}
        if result.numel() == 1:
            return {self.name: float(result)}
        return {f"{self.name}_{at}": float(value) for at, value in enumerate(result.flatten())}


def _imported(module: str, metric: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{metric} needs the extra metrics: pip install 'footplate[metrics]'") from error


def _named(name: str) -> Any:
    library, text = (_imported(module, f"{PREFIX}{name}") for module in ("torchmetrics", "torchmetrics.text"))
    # Text metrics also exist in the main module under old names, which warn.
    classes = {
        class_name: getattr(library, class_name) for class_name in library.__all__ if class_name not in text.__all__
    }
    classes |= {class_name: getattr(text, class_name) for class_name in text.__all__}
    if name not in classes or not isinstance(classes[name], type):
        raise UnknownComponent(
            "metric of torchmetrics", name, [class_name for class_name in classes if class_name[0].isupper()]
        )
    return classes[name]


def _about_classes(kind: Any, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    parameters = inspect.signature(kind.__new__).parameters
    if "task" not in parameters:
        parameters = inspect.signature(kind).parameters
    options: dict[str, Any] = {"ignore_index": IGNORE} if "ignore_index" in parameters else {}
    if "task" not in parameters:
        return options
    if logits.shape == labels.shape:
        return {**options, "task": "multilabel", "num_labels": logits.shape[-1]}
    return {**options, "task": "multiclass", "num_classes": logits.shape[-1]}


def _inputs_for(kind: type, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns logits and labels in the shapes that a torchmetrics class expects.

    Classification metrics get tokens as samples. Others get the tensors unchanged, without a last dimension of 1.
    """
    if ".classification" in kind.__module__:
        if logits.shape == labels.shape:
            return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1, labels.shape[-1]).long()
        return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    return (logits.squeeze(-1) if logits.shape == (*labels.shape, 1) else logits), labels


class TextMetric:
    """A metric that decodes generated tokens and labels to text, such as `rouge` with predict_with_generate."""

    def __init__(self, name: str, processor: Any) -> None:
        if not callable(getattr(processor, "batch_decode", None)):
            raise ValueError(f"{name} compares texts: pass a processing_class that decodes tokens, such as a tokenizer")
        self.name, self._processor = name, processor
        kind: Callable[..., Any] = getattr(_imported("torchmetrics.text", name), TEXTS[name])
        options: dict[str, Any] = {}
        if name == "rouge":
            sentences = ("rougeLsum",) if find_spec("nltk") else ()
            options["rouge_keys"] = ("rouge1", "rouge2", "rougeL", *sentences)
        self._metric = kind(**options)
        # Each process already has the outputs of all processes, so torchmetrics must not add them up once more.
        self._metric.sync_on_compute = False

    def update(self, logits: Tensor, labels: Tensor) -> None:
        if logits.is_floating_point():
            raise ValueError(
                f"{self.name} compares texts, but the predictions are logits: use Seq2SeqTrainer with "
                "predict_with_generate=True"
            )
        generated, expected = decoded(logits, self._processor), decoded(labels, self._processor)
        several = TEXTS[self.name] in _SEVERAL_TARGETS
        self._metric.update(generated, [[text] for text in expected] if several else expected)

    def compute(self) -> dict[str, float]:
        result = self._metric.compute()
        if not isinstance(result, dict):
            return {self.name: float(result)}
        return {
            key.removesuffix("_fmeasure"): float(value) for key, value in result.items() if key.endswith("_fmeasure")
        }


def decoded(tokens: Any, processor: Any) -> list[str]:
    """Returns rows of tokens, in a tensor or an array, as texts without padding and special tokens."""
    pad = getattr(processor, "pad_token_id", None) or 0
    rows = [[pad if token < 0 else token for token in row] for row in tokens.tolist()]
    return [text.strip() for text in processor.batch_decode(rows, skip_special_tokens=True)]


class AddBatch:
    """Wraps a metric with `add_batch(predictions=, references=)` and `compute()`, as Hugging Face's evaluate loads it.

    The wrapped metric receives predicted classes instead of logits, without the positions whose label is -100.
    """

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def update(self, logits: Tensor, labels: Tensor) -> None:
        predictions = logits if logits.shape == labels.shape else logits.argmax(-1)
        counts = torch.ones_like(labels, dtype=torch.bool) if labels.is_floating_point() else labels.ne(IGNORE)
        self.metric.add_batch(predictions=predictions[counts].tolist(), references=labels[counts].tolist())

    def compute(self) -> dict[str, float]:
        return dict(self.metric.compute() or {})
