"""Metrics of generated texts (bleu, sacrebleu, rouge, chrf), which torchmetrics computes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from footplate.trainer.losses.labels import IGNORE

_SEVERAL_TARGETS = ("BLEUScore", "SacreBLEUScore", "CHRFScore")
TEXTS = {"bleu": "BLEUScore", "sacrebleu": "SacreBLEUScore", "rouge": "ROUGEScore", "chrf": "CHRFScore"}


class TextMetric:
    """A metric that decodes generated tokens and labels to text, such as `rouge` with predict_with_generate."""

    def __init__(self, name: str, processor: Any) -> None:
        if not callable(getattr(processor, "batch_decode", None)):
            raise ValueError(f"{name} compares texts: pass a processing_class that decodes tokens, such as a tokenizer")
        self.name, self._processor = name, processor
        try:
            kind: Callable[..., Any] = getattr(import_module("torchmetrics.text"), TEXTS[name])
        except ImportError as error:
            raise ImportError(f"{name} needs the extra metrics: pip install 'footplate[metrics]'") from error
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
        generated, expected = self._read(logits), self._read(labels)
        several = TEXTS[self.name] in _SEVERAL_TARGETS
        self._metric.update(generated, [[text] for text in expected] if several else expected)

    def _read(self, tokens: Tensor) -> list[str]:
        pad = getattr(self._processor, "pad_token_id", None) or 0
        decoded: list[str] = self._processor.batch_decode(
            tokens.masked_fill(tokens == IGNORE, pad).tolist(), skip_special_tokens=True
        )
        return [text.strip() for text in decoded]

    def compute(self) -> dict[str, float]:
        result = self._metric.compute()
        if not isinstance(result, dict):
            return {self.name: float(result)}
        return {
            key.removesuffix("_fmeasure"): float(value) for key, value in result.items() if key.endswith("_fmeasure")
        }
