"""One pass over a loader without gradients: loss, streaming metrics and, where they are wanted, all predictions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from worker.trainer.data import batch_length, draw_and_discard, is_ours
from worker.trainer.losses import IGNORE, shifted
from worker.trainer.metrics import Metric, make_metric
from worker.trainer.state import EvalLoopOutput, EvalPrediction

if TYPE_CHECKING:
    from worker.trainer.evaluating import Evaluating

log = logging.getLogger("footplate.trainer")


def run(
    trainer: Evaluating, loader: Any, *, loss_only: bool, keep: bool, ignore_keys: list[str] | None, prefix: str
) -> EvalLoopOutput:
    """Predictions are kept only where `keep` says so: memory is flat otherwise, however many samples there are."""
    model = trainer.strategy.prepare_for_evaluation(trainer.model)
    metrics = [] if loss_only else [make_metric(each) for each in trainer.metrics]
    need_logits = keep or bool(metrics)
    losses, kept = _MeanLoss(), _Kept()
    was_training = model.training
    model.eval()
    trainer.callback_handler.eval_dataloader = loader
    batches = trainer.strategy.plain_loader(loader)
    if is_ours(batches):
        draw_and_discard()
    try:
        for batch in batches:
            loss, logits, labels = trainer.prediction_step(model, batch, not need_logits, ignore_keys)
            samples = batch_length(batch)
            if logits is not None and trainer.preprocess_logits_for_metrics is not None:
                logits = trainer.preprocess_logits_for_metrics(logits, labels)
            losses.add(loss, samples)
            _update(metrics, logits, labels, shifts=trainer.anatomy.shifts_labels)
            if keep:
                kept.add(logits, labels)
            trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)
    finally:
        model.train(was_training)
    predictions, label_ids = kept.arrays()
    found = _computed(metrics, trainer.compute_metrics if keep else None, predictions, label_ids)
    if losses.samples:
        found["loss"] = losses.mean()
    return EvalLoopOutput(predictions, label_ids, _prefixed(found, prefix), losses.seen)


class _MeanLoss:
    """The mean of batch losses, weighted by samples: the reference's meaning. The sum stays on the device."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.samples = self.seen = 0

    def add(self, loss: Tensor | None, samples: int) -> None:
        self.seen += samples
        if loss is not None:
            self.total = self.total + loss.float() * samples
            self.samples += samples

    def mean(self) -> float:
        return float(self.total) / self.samples


class _Kept:
    """All predictions and labels, on the host."""

    def __init__(self) -> None:
        self.predictions: list[Any] = []
        self.labels: list[Any] = []

    def add(self, logits: Any, labels: Any) -> None:
        if logits is not None:
            self.predictions.append(_on_host(logits))
        if labels is not None:
            self.labels.append(_on_host(labels))

    def arrays(self) -> tuple[Any, Any]:
        return _joined(self.predictions), _joined(self.labels)


def _update(metrics: Iterable[Metric], logits: Any, labels: Any, *, shifts: bool) -> None:
    if not metrics or labels is None:
        return
    first = logits[0] if isinstance(logits, tuple) else logits
    labels = labels[0] if isinstance(labels, tuple) else labels
    if shifts:
        first, labels = shifted(first, labels)
    for metric in metrics:
        metric.update(first, labels)


def _computed(
    metrics: Iterable[Metric], compute: Callable[[EvalPrediction], Mapping[str, Any]] | None, logits: Any, labels: Any
) -> dict[str, float]:
    found: dict[str, float] = {}
    for metric in metrics:
        found.update(metric.compute())
    if compute is not None and logits is not None and labels is not None:
        found.update({name: _plain(value) for name, value in compute(EvalPrediction(logits, labels)).items()})
    return found


def _plain(value: Any) -> Any:
    """A number that JSON can hold, from NumPy's and torch's scalars."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) in (1, value.size) else value


def _prefixed(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    return {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach()
        return (value.float() if value.dtype is torch.bfloat16 else value).cpu().numpy()
    if isinstance(value, Mapping):
        return {name: _on_host(each) for name, each in value.items()}
    return tuple(_on_host(each) for each in value)


def _joined(parts: list[Any]) -> Any:
    """One array along the first dimension; shorter sequences are filled with -100 on the right."""
    if not parts:
        return None
    if isinstance(parts[0], dict):
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(_joined(list(each)) for each in zip(*parts, strict=True))
    if parts[0].ndim == 0:
        return numpy.stack(parts)
    if parts[0].ndim > 1:
        widest = max(part.shape[1] for part in parts)
        parts = [_padded(part, widest) for part in parts]
    return numpy.concatenate(parts)


def _padded(part: Any, width: int) -> Any:
    missing = [(0, 0), (0, width - part.shape[1]), *([(0, 0)] * (part.ndim - 2))]
    return numpy.pad(part, missing, constant_values=IGNORE) if part.shape[1] < width else part


def speed_metrics(
    prefix: str, started: float, *, samples: float | None = None, steps: float | None = None, tokens: float | None = None
) -> dict[str, float]:
    """How long it took, and how much that is per second; rounded as the reference does. By the wall clock."""
    seconds = max(time.time() - started, 1e-9)
    done = {"samples": samples, "steps": steps, "tokens": tokens}
    speeds = {f"{prefix}_{name}_per_second": round(n / seconds, 3) for name, n in done.items() if n is not None}
    return {f"{prefix}_runtime": round(seconds, 4), **speeds}
