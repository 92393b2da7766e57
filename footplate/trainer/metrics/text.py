"""Metrics of texts, by torchmetrics: what was generated is decoded beside what was wanted, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from footplate.trainer.losses import IGNORE

_SEVERAL_TARGETS = ("BLEUScore", "SacreBLEUScore", "CHRFScore")
TEXTS = {"bleu": "BLEUScore", "sacrebleu": "SacreBLEUScore", "rouge": "ROUGEScore", "chrf": "CHRFScore"}


class Text:
    """Its tokens are read by the processor: `metrics=["rouge"]` of a Seq2SeqTrainer that generates."""

    def __init__(self, name: str, processor: Any) -> None:
        if not callable(getattr(processor, "batch_decode", None)):
            raise ValueError(f"{name} compares texts: hand in a processing_class that decodes tokens, a tokenizer")
        self.name, self._processor = name, processor
        self._metric = _made(name)
        # Each process is shown what all of them saw.
        self._metric.sync_on_compute = False

    def update(self, logits: Tensor, labels: Tensor) -> None:
        if logits.is_floating_point():
            raise ValueError(
                f"{self.name} compares texts, and these are logits: use Seq2SeqTrainer with predict_with_generate=True"
            )
        said, wanted = self._read(logits), self._read(labels)
        several = TEXTS[self.name] in _SEVERAL_TARGETS
        self._metric.update(said, [[each] for each in wanted] if several else wanted)

    def _read(self, tokens: Tensor) -> list[str]:
        pad = getattr(self._processor, "pad_token_id", None) or 0
        decoded: list[str] = self._processor.batch_decode(
            tokens.masked_fill(tokens == IGNORE, pad).tolist(), skip_special_tokens=True
        )
        return [each.strip() for each in decoded]

    def compute(self) -> dict[str, float]:
        found = self._metric.compute()
        if not isinstance(found, dict):
            return {self.name: float(found)}
        return {
            key.removesuffix("_fmeasure"): float(value) for key, value in found.items() if key.endswith("_fmeasure")
        }


def _made(name: str) -> Any:
    try:
        kind: Callable[..., Any] = getattr(import_module("torchmetrics.text"), TEXTS[name])
    except ImportError as error:
        raise ImportError(f"{name} needs the extra metrics: pip install 'footplate[metrics]'") from error
    if name != "rouge":
        return kind()
    sentences = ("rougeLsum",) if find_spec("nltk") else ()
    return kind(rouge_keys=("rouge1", "rouge2", "rougeL", *sentences))
