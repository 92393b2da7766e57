"""One pass over a loader without gradients: loss, streaming metrics and, where they are wanted, all predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any

import numpy
from torch import Tensor

from footplate.trainer.data import batch_length, draw_and_discard, is_ours, opened
from footplate.trainer.eval_totals import ExactLoss, Kept, MeanLoss
from footplate.trainer.facade import Facade
from footplate.trainer.held_tensors import in_place
from footplate.trainer.losses import shifted
from footplate.trainer.metrics import Metric, Sums, make_metric
from footplate.trainer.precision import Precision, evaluating_in
from footplate.trainer.prediction_step import Seen, prediction_step
from footplate.trainer.state import EvalLoopOutput, EvalPrediction
from footplate.trainer.strategies.peers import Hollow


def run(
    trainer: Facade,
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
    strategy = trainer._footplate.strategy
    model = strategy.prepare_for_evaluation(trainer.model)
    found = _Findings(trainer, loss_only=loss_only, keeps=keep, by_batch=by_batch)
    step = prediction_step(trainer, model, loss_only=found.are_losses_only, ignore_keys=ignore_keys)
    trainer.callback_handler.eval_dataloader = loader
    # Both stay in eval mode afterwards, as Hugging Face leaves them; the next training step sets train mode again.
    model.eval()
    if hasattr(trainer.optimizer, "eval"):
        trainer.optimizer.eval()
    with evaluating_in(model, _full(trainer)), in_place(trainer.callback_handler.callbacks):
        for batch, is_last in _marked(strategy.batches(_opened(trainer, loader)), by_batch):
            found.take(batch, step(batch), is_last)
    return found.output(prefix)


_KEPT = ("predictions", "labels", "inputs")
_NOTHING_MORE = (None, None, None)


class _Findings:
    """What comes of an evaluation's batches: losses, metrics, predictions where they are kept."""

    def __init__(self, trainer: Facade, *, loss_only: bool, keeps: bool, by_batch: bool) -> None:
        args = trainer.args
        self.trainer, self.keeps, self.by_batch = trainer, keeps, by_batch
        self.metrics = (
            [] if loss_only else [make_metric(each, trainer.processing_class) for each in trainer._footplate.metrics]
        )
        self.losses, self.exact = MeanLoss(leaves_out_not_finite=args.logging_nan_inf_filter), ExactLoss()
        every = args.eval_accumulation_steps or 1
        self.kept = {name: Kept(every, joins=args.eval_do_concat_batches) for name in _KEPT}
        self.computed: Mapping[str, Any] = {}
        self.wants_inputs, self.wants_losses = "inputs" in args.include_for_metrics, "loss" in args.include_for_metrics
        self.are_losses_only = not (keeps or self.metrics or by_batch)
        # Sums of ours are added up at the end; anything else needs to see all that every process saw.
        self.shares = keeps or by_batch or any(not isinstance(each, Sums) for each in self.metrics)
        self._counts_as = args.eval_batch_size if trainer._footplate.counts_full_batches else None

    def take(self, batch: Any, seen: Seen, is_last: bool) -> None:
        """One batch of this process, and with it those that the others read at the same time."""
        trainer, (loss, logits, labels) = self.trainer, seen
        counts = not isinstance(batch, Hollow)
        if counts:
            samples = batch_length(batch)
            self.losses.add(loss, samples, samples if self._counts_as is None else self._counts_as)
            self.exact.add(loss, batch, trainer)
        if logits is not None and trainer.preprocess_logits_for_metrics is not None:
            logits = trainer.preprocess_logits_for_metrics(logits, labels)
        more = self._more(batch, loss) if self.wants_inputs or self.wants_losses else _NOTHING_MORE
        trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)
        round_of_all = trainer._footplate.strategy.seen((logits, labels, *more), counts=counts, shares=self.shares)
        for number, one in enumerate(round_of_all, start=1):
            self._note(one, is_final=is_last and number == len(round_of_all))

    def _more(self, batch: Any, loss: Tensor | None) -> tuple[Any, Any, Any]:
        """What `include_for_metrics` asks for: the main input, a loss for every sample, the whole batch."""
        trainer = self.trainer
        inputs = trainer._prepare_input(batch[trainer._footplate.anatomy.main_input]) if self.wants_inputs else None
        every = loss.repeat(batch_length(batch)) if self.by_batch and self.wants_losses and loss is not None else None
        return inputs, every, batch if self.by_batch and self.wants_inputs else None

    def _note(self, one: tuple[Any, ...], *, is_final: bool) -> None:
        logits, labels, inputs, every, whole = one
        _update(self.metrics, logits, labels, shifts=self.trainer._footplate.anatomy.shifts_labels)
        if self.keeps:
            for name, value in zip(_KEPT, (logits, labels, inputs), strict=True):
                self.kept[name].add(value)
        compute = self.trainer.compute_metrics
        if self.by_batch and compute is not None and logits is not None and labels is not None:
            said = compute(EvalPrediction(logits, labels, whole, every), compute_result=is_final)
            self.computed = _named(said or {})

    def output(self, prefix: str) -> EvalLoopOutput:
        self._join()
        predictions, label_ids, inputs = (self.kept[name].arrays() for name in _KEPT)
        found = {name: value for metric in self.metrics for name, value in metric.compute().items()}
        found |= {name: plain(value) for name, value in self._computed(predictions, label_ids, inputs).items()}
        found |= self._losses(prefix)
        return EvalLoopOutput(predictions, label_ids, _prefixed(found, prefix), self.losses.seen)

    def _join(self) -> None:
        """With what the other processes have found."""
        readers = self.trainer._footplate.strategy.readers
        self.losses.join(readers)
        self.exact.join(readers)
        if not self.shares:
            for metric in self.metrics:
                metric.join(readers.everyone)  # type: ignore[attr-defined]

    def _computed(self, predictions: Any, label_ids: Any, inputs: Any) -> Mapping[str, Any]:
        """What a `compute_metrics` of the user's own says of all of it."""
        compute, is_asked = self.trainer.compute_metrics, self.keeps and not self.by_batch
        if not is_asked or compute is None or predictions is None or label_ids is None:
            return self.computed
        per_sample = self.losses.per_sample() if self.wants_losses else None
        return _named(compute(EvalPrediction(predictions, label_ids, inputs, per_sample)))

    def _losses(self, prefix: str) -> dict[str, float]:
        losses = self.losses
        if not losses.samples:
            return {}
        found = {f"{prefix}_loss": losses.mean()}
        if losses.left_out:
            # The loss above is that of the others, as the reference has it; nobody should have to guess that.
            found["nan_batches"] = losses.left_out
        return found | self.exact.found(losses.samples)


def _named(said: Any) -> Mapping[str, Any]:
    if isinstance(said, Mapping):
        return said
    raise TypeError(
        f"compute_metrics returned a {type(said).__name__}: return a dict of names to numbers, such as "
        '{"accuracy": 0.9}'
    )


def _full(trainer: Facade) -> Precision:
    """In what the weights themselves are; in training they stay what they are."""
    args = trainer.args
    return "no" if trainer.is_in_train else "bf16" if args.bf16_full_eval else "fp16" if args.fp16_full_eval else "no"


def _opened(trainer: Facade, loader: Any) -> Iterator[Any]:
    batches = trainer._footplate.strategy.plain_loader(loader)
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


def _update(metrics: Iterable[Metric], logits: Any, labels: Any, *, shifts: bool) -> None:
    if isinstance(labels, tuple):
        labels = labels[0] if labels else None
    if not metrics or labels is None:
        return
    first = logits[0] if isinstance(logits, tuple) else logits
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
