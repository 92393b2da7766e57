"""One pass over a loader without gradients: loss, streaming metrics and, where they are wanted, all predictions."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from worker.trainer.data import batch_length, draw_and_discard, is_ours, opened
from worker.trainer.holding import in_place
from worker.trainer.losses import DICT, IGNORE, shifted
from worker.trainer.metrics import Metric, Sums, make_metric
from worker.trainer.precision import Precision, evaluating_in
from worker.trainer.predicting import prediction_step, weight_of
from worker.trainer.state import EvalLoopOutput, EvalPrediction
from worker.trainer.strategies.peers import Alone, Hollow

if TYPE_CHECKING:
    from worker.trainer.evaluating import Evaluating

log = logging.getLogger("footplate.trainer")

_FOLD_AT = 256


def run(
    trainer: Evaluating,
    loader: Any,
    *,
    loss_only: bool,
    keep: bool,
    ignore_keys: list[str] | None,
    prefix: str,
    by_batch: bool = False,
) -> EvalLoopOutput:
    """Predictions are kept only where `keep` says so: memory is flat otherwise, however many samples there are.

    `loss_only` turns off streaming metrics too. `by_batch` hands every batch to `compute_metrics` as it comes.
    """
    args, strategy = trainer.args, trainer.strategy
    model = strategy.prepare_for_evaluation(trainer.model)
    metrics = [] if loss_only else [make_metric(each, trainer.processing_class) for each in trainer.metrics]
    losses, exact = MeanLoss(leaves_out_not_finite=args.logging_nan_inf_filter), ExactLoss()
    kept = {name: Kept(args.eval_accumulation_steps or 1, joins=args.eval_do_concat_batches) for name in _KEPT}
    wants_inputs, wants_losses = ("inputs" in args.include_for_metrics, "loss" in args.include_for_metrics)
    computed: Mapping[str, Any] = {}
    loss_only_steps = not (keep or metrics or by_batch)
    # Sums of ours are added up at the end; anything else needs to see all that every process saw.
    shares = keep or by_batch or any(not isinstance(each, Sums) for each in metrics)
    trainer.callback_handler.eval_dataloader = loader
    step, weight = (
        prediction_step(trainer, model, loss_only=loss_only_steps, ignore_keys=ignore_keys),
        weight_of(trainer),
    )
    with evaluating_in(model, _full(trainer)), _evaluating(trainer, model):
        for batch, is_last in _marked(strategy.batches(_opened(trainer, loader)), by_batch):
            loss, logits, labels = step(batch)
            counts = not isinstance(batch, Hollow)
            if counts:
                samples = batch_length(batch)
                losses.add(loss, samples, weight(batch, samples))
                exact.add(loss, batch, trainer)
            if logits is not None and trainer.preprocess_logits_for_metrics is not None:
                logits = trainer.preprocess_logits_for_metrics(logits, labels)
            inputs = trainer._prepare_input(batch[trainer.anatomy.main_input]) if wants_inputs else None
            every = loss.repeat(batch_length(batch)) if by_batch and wants_losses and loss is not None else None
            seen = (logits, labels, inputs, every, batch if by_batch and wants_inputs else None)
            trainer.control = trainer.callback_handler.on_prediction_step(args, trainer.state, trainer.control)
            round_of_all = strategy.seen(seen, counts=counts, shares=shares)
            for number, (logits, labels, inputs, every, whole) in enumerate(round_of_all, start=1):
                _update(metrics, logits, labels, shifts=trainer.anatomy.shifts_labels)
                if keep:
                    for name, value in zip(_KEPT, (logits, labels, inputs), strict=True):
                        kept[name].add(value)
                if by_batch and trainer.compute_metrics is not None and logits is not None and labels is not None:
                    is_final = is_last and number == len(round_of_all)
                    one = EvalPrediction(logits, labels, whole, every)
                    computed = trainer.compute_metrics(one, compute_result=is_final) or {}
    losses.join(strategy.peers)
    exact.join(strategy.peers)
    if not shares:
        for metric in metrics:
            metric.join(strategy.peers.everyone)  # type: ignore[attr-defined]
    predictions, label_ids, inputs = (kept[name].arrays() for name in _KEPT)
    found = {name: value for metric in metrics for name, value in metric.compute().items()}
    if (
        keep
        and not by_batch
        and trainer.compute_metrics is not None
        and predictions is not None
        and label_ids is not None
    ):
        per_sample = losses.per_sample() if wants_losses else None
        computed = trainer.compute_metrics(EvalPrediction(predictions, label_ids, inputs, per_sample))
    found.update({name: plain(value) for name, value in computed.items()})
    if losses.samples:
        found[f"{prefix}_loss"] = losses.mean()
        if losses.left_out:
            # The loss above is that of the others, as the reference has it; nobody should have to guess that.
            found["nan_batches"] = losses.left_out
        found.update(exact.found(losses.samples))
    return EvalLoopOutput(predictions, label_ids, _prefixed(found, prefix), losses.seen)


def _full(trainer: Evaluating) -> Precision:
    """In what the weights themselves are; in training they stay what they are."""
    args = trainer.args
    return "no" if trainer.is_in_train else "bf16" if args.bf16_full_eval else "fp16" if args.fp16_full_eval else "no"


_KEPT = ("predictions", "labels", "inputs")


class _evaluating:
    """Model and optimizer as they are in evaluation; afterwards as they were, also when evaluating raises."""

    def __init__(self, trainer: Evaluating, model: Any) -> None:
        self.model, self.optimizer = model, trainer.optimizer
        self.was_training = model.training
        self.others = in_place(trainer.callback_handler.callbacks)

    def __enter__(self) -> None:
        self.model.eval()
        if hasattr(self.optimizer, "eval"):
            self.optimizer.eval()
        self.others.__enter__()

    def __exit__(self, *error: object) -> None:
        self.others.__exit__(None, None, None)
        self.model.train(self.was_training)
        if self.was_training and hasattr(self.optimizer, "train"):
            self.optimizer.train()


def _opened(trainer: Evaluating, loader: Any) -> Iterator[Any]:
    batches = trainer.strategy.plain_loader(loader)
    if is_ours(batches):
        draw_and_discard()
    return opened(batches)


def _marked(batches: Iterator[Any], marks: bool) -> Iterator[tuple[Any, bool]]:
    """Each with whether it is the last: to know that, one is read ahead."""
    if not marks:
        return zip(batches, repeat(False), strict=False)
    return _marked_ahead(batches)


def _marked_ahead(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    none = object()
    batch = next(batches, none)
    while batch is not none:
        following = next(batches, none)
        yield batch, following is none
        batch = following


class MeanLoss:
    """The mean of batch losses, weighted by samples: the reference's meaning, and its sum to the last bit.

    They stay on the device, and are read some hundred at a time.
    """

    def __init__(self, *, leaves_out_not_finite: bool = False) -> None:
        self.samples = self.seen = 0
        self._leaves_out = leaves_out_not_finite
        self._on_device: list[Tensor] = []
        self._values: list[float] = []
        self._counts: list[int] = []

    def add(self, loss: Tensor | None, samples: int, weight: int) -> None:
        self.seen += samples
        if loss is None:
            return
        self.samples += samples
        self._on_device.append(loss)
        self._counts.append(weight)
        if len(self._on_device) >= _FOLD_AT:
            self._read()

    def _read(self) -> None:
        if self._on_device:
            self._values += torch.stack(self._on_device).double().tolist()
            self._on_device.clear()

    def join(self, peers: Alone) -> None:
        """With those of the other processes, in the order in which one would have seen them."""
        if peers.world == 1:
            return
        self._read()
        told = peers.everyone((self._values, self._counts, self.samples, self.seen))
        rounds = range(max(len(values) for values, *_ in told))
        each = [(values[at], counts[at]) for at in rounds for values, counts, *_ in told if at < len(values)]
        self._values, self._counts = [value for value, _ in each], [count for _, count in each]
        self.samples, self.seen = sum(one[2] for one in told), sum(one[3] for one in told)

    def per_sample(self) -> Any:
        """Every sample has the mean of its batch."""
        self._read()
        return numpy.repeat(numpy.asarray(self._values, dtype=numpy.float32), self._counts)

    @property
    def left_out(self) -> int:
        """Batches whose loss was NaN or infinite, and so has no part in the mean."""
        self._read()
        finite = sum(map(math.isfinite, self._values))
        return len(self._values) - finite if self._leaves_out and finite else 0

    def mean(self) -> float:
        every = self.per_sample()
        finite = numpy.isfinite(every)
        return float((every[finite] if self._leaves_out and finite.any() else every).mean())


class ExactLoss:
    """The mean over what the loss is a mean of: of token tasks it does not depend on how samples were batched."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor]] = []

    def add(self, loss: Tensor | None, batch: Any, trainer: Evaluating) -> None:
        labels = batch.get("labels") if isinstance(batch, DICT) else None
        if loss is None or not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
            return
        items = trainer._get_num_items_in_batch([batch], loss.device)
        if isinstance(items, Tensor):
            self._parts.append((torch.where(items > 0, loss * items, 0.0), items))
        if len(self._parts) >= _FOLD_AT:
            self._parts = [self._sums()]

    def _sums(self) -> tuple[Tensor, Tensor]:
        totals, counts = zip(*self._parts, strict=True)
        return torch.stack([each.double() for each in totals]).sum(), torch.stack(counts).sum()

    def join(self, peers: Alone) -> None:
        if peers.world == 1:
            return
        total, count = self._sums() if self._parts else (None, None)
        told = peers.everyone(None if total is None or count is None else (total.cpu(), count.cpu()))
        self._parts = [each for each in told if each is not None]

    def found(self, samples: int) -> dict[str, float]:
        if not self._parts:
            return {}
        total, count = (float(each) for each in self._sums())
        return {"loss_exact": total / count} if count and count != samples else {}


class Kept:
    """Outputs, on the device for so many batches and then on the host."""

    def __init__(self, batches_on_device: int, *, joins: bool = True) -> None:
        self._batches_on_device, self._joins = batches_on_device, joins
        self._on_device: list[Any] = []
        self._on_host: list[Any] = []

    def add(self, value: Any) -> None:
        if value is None:
            return
        self._on_device.append(value)
        if len(self._on_device) >= self._batches_on_device:
            self._move()

    def _move(self) -> None:
        self._on_host += [_on_host(each) for each in self._on_device]
        self._on_device.clear()

    def arrays(self) -> Any:
        self._move()
        if not self._joins:
            return self._on_host or None
        return _joined(self._on_host)


def _update(metrics: Iterable[Metric], logits: Any, labels: Any, *, shifts: bool) -> None:
    if not metrics or labels is None:
        return
    first = logits[0] if isinstance(logits, tuple) else logits
    labels = labels[0] if isinstance(labels, tuple) else labels
    if shifts:
        first, labels = shifted(first, labels)
    for metric in metrics:
        metric.update(first, labels)


def plain(value: Any) -> Any:
    """What JSON can hold, from NumPy's and torch's scalars, in containers too."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(each) for each in value)
    if isinstance(value, numpy.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        return value.item()
    return value


def _prefixed(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    return {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach()
        return (value.float() if value.dtype is torch.bfloat16 else value).cpu().numpy()
    if isinstance(value, Mapping):
        return {name: _on_host(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_on_host(each) for each in value)
    return value


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
    prefix: str,
    started: float,
    *,
    samples: float | None = None,
    steps: float | None = None,
    tokens: float | None = None,
) -> dict[str, float]:
    """How long it took, and how much that is per second; rounded as the reference does. By the wall clock."""
    seconds = max(time.time() - started, 1e-9)
    done = {"samples": samples, "steps": steps, "tokens": tokens}
    speeds = {f"{prefix}_{name}_per_second": round(n / seconds, 3) for name, n in done.items() if n is not None}
    return {f"{prefix}_runtime": round(seconds, 4), **speeds}
