"""Runs one pass over a loader without gradients, for losses, streaming metrics and, if needed, all predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Any

import numpy
from torch import Tensor

from footplate.trainer.callback_tensors import in_place
from footplate.trainer.data import batch_length, draw_and_discard, is_ours, opened
from footplate.trainer.eval_totals import CollectedOutputs, ExactLoss, MeanLoss
from footplate.trainer.losses.loss import shifted
from footplate.trainer.metrics.choose import BatchMetric, make_metric
from footplate.trainer.metrics.counting import Sums
from footplate.trainer.overrides import Shortcut, left_out_by
from footplate.trainer.precision import Precision, evaluating_in
from footplate.trainer.prediction_step import BatchResult, prediction_step
from footplate.trainer.samplers import Batches
from footplate.trainer.seeds import rng_state, set_rng_state
from footplate.trainer.state import EvalLoopOutput, EvalPrediction, watched_metric
from footplate.trainer.strategies.peers import PaddingBatch

if TYPE_CHECKING:
    from footplate.trainer.evaluation import OwnEvaluation
    from footplate.trainer.trainer import Trainer


@left_out_by(Shortcut.KNOWN_METRICS)
def evaluation_loop(
    trainer: Trainer,
    dataloader: Any,
    description: str,
    prediction_loss_only: bool | None = None,
    ignore_keys: list[str] | None = None,
    metric_key_prefix: str = "eval",
) -> EvalLoopOutput:
    """Runs the model over the loader's batches. Returns losses, metrics and, if they are kept, all predictions.

    Without predictions, memory does not grow with the samples. The argument `prediction_loss_only` of the Trainer also
    turns off streaming metrics. With `batch_eval_metrics`, `compute_metrics` is called as soon as a batch is computed.
    """
    args, strategy = trainer.args, trainer._footplate.strategy
    loss_only = args.prediction_loss_only
    keep = not (loss_only if prediction_loss_only is None else prediction_loss_only)
    by_batch = keep and args.batch_eval_metrics and trainer.compute_metrics is not None
    # compute_metrics by batch needs no kept predictions. predict() keeps predictions, because it returns them.
    keep = keep and not (by_batch and description != "Prediction")
    model = strategy.prepare_for_evaluation(trainer.model)
    results = _Results(trainer, dataloader, loss_only=loss_only, keeps=keep, by_batch=by_batch)
    step = prediction_step(trainer, model, loss_only=results.are_losses_only, ignore_keys=ignore_keys)
    trainer.callback_handler.eval_dataloader = dataloader
    _to_evaluation(trainer, model)
    with evaluating_in(model, _weights_precision(trainer)), in_place(trainer.callback_handler.callbacks):
        plain_loader = strategy.plain_loader(dataloader)
        if is_ours(plain_loader):
            draw_and_discard()
        for batch, is_last in _marked(strategy.batches(opened(plain_loader)), by_batch):
            results.add(batch, step(batch), is_last)
    return results.output(metric_key_prefix)


def _to_evaluation(trainer: Trainer, model: Any) -> None:
    """Puts model and optimizer into eval mode until the next training step, as Hugging Face's Trainer does."""
    model.eval()
    if hasattr(trainer.optimizer, "eval"):
        trainer.optimizer.eval()


def run_own(trainer: Trainer, rows: OwnEvaluation) -> EvalLoopOutput:
    """Runs an evaluation set's own evaluation. Training afterwards draws the same random numbers as without it."""
    model = trainer.model
    trainer._footplate.strategy.prepare_for_evaluation(model)
    _to_evaluation(trainer, model)
    rng = rng_state()
    try:
        with evaluating_in(model, _weights_precision(trainer)), in_place(trainer.callback_handler.callbacks):
            metrics = rows.metrics(trainer)
    finally:
        set_rng_state(rng)
    return EvalLoopOutput(None, None, metrics, len(rows))


_COLLECTED = ("predictions", "labels", "inputs")
_NO_EXTRA = (None, None, None)


class _RowCounter:
    """Counts the dataset rows in the batches of an evaluation.

    Our own loaders know the number. For other data, the entries of a full batch show it. A collator may make several
    entries of each row: DPO's, for example, makes a chosen and a rejected answer.
    """

    def __init__(self, loader: Any, batch_size: int) -> None:
        sampler = getattr(loader, "batch_sampler", None)
        self._sampler = sampler if isinstance(sampler, Batches) and sampler.can_start_within else None
        self._rows = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or batch_size
        self._batches_read, self._entries_per_row = 0, 1

    def rows_of(self, batch: Any) -> int:
        """Returns the number of rows in the next batch."""
        if self._sampler is not None:
            self._batches_read += 1
            return self._sampler.samples_in(self._batches_read - 1)
        entries = batch_length(batch, self._rows)
        if entries > self._rows and entries % self._rows == 0:
            self._entries_per_row = entries // self._rows
        return max(1, entries // self._entries_per_row)


class _Results:
    """Collects the results of an evaluation's batches: losses, metrics, and predictions if they are kept."""

    def __init__(self, trainer: Trainer, loader: Any, *, loss_only: bool, keeps: bool, by_batch: bool) -> None:
        args = trainer.args
        self.trainer, self.keeps, self.by_batch = trainer, keeps, by_batch
        self.row_counter = _RowCounter(loader, args.eval_batch_size)
        self.metrics = (
            []
            if loss_only
            else [make_metric(metric, trainer.processing_class) for metric in trainer._footplate.metrics]
        )
        self.losses, self.exact = MeanLoss(leaves_out_not_finite=args.logging_nan_inf_filter), ExactLoss()
        # If a subclass computes the loss, the number of items that the loss is a mean of is unknown.
        self.knows_items = not any(name in trainer._footplate.overrides for name in ("compute_loss", "prediction_step"))
        batches_on_device = args.eval_accumulation_steps or 1
        self.collected = {
            name: CollectedOutputs(batches_on_device, joins=args.eval_do_concat_batches) for name in _COLLECTED
        }
        self.computed: Mapping[str, Any] = {}
        self.wants_inputs, self.wants_losses = "inputs" in args.include_for_metrics, "loss" in args.include_for_metrics
        self.are_losses_only = not (keeps or self.metrics or by_batch)
        # Our own sums are added over processes at the end. Any other metric needs the outputs of all processes.
        self.shares = keeps or by_batch or any(not isinstance(metric, Sums) for metric in self.metrics)
        self._counts_as = args.eval_batch_size if trainer._footplate.counts_full_batches else None

    def add(self, batch: Any, result: BatchResult, is_last: bool) -> None:
        """Adds the results of one batch of this process, and of the batches that other processes read meanwhile."""
        trainer, (loss, logits, labels) = self.trainer, result
        counts = not isinstance(batch, PaddingBatch)
        if counts:
            samples = self.row_counter.rows_of(batch)
            self.losses.add(loss, samples, samples if self._counts_as is None else self._counts_as)
            if self.knows_items:
                self.exact.add(loss, batch, trainer)
        if logits is not None and trainer.preprocess_logits_for_metrics is not None:
            logits = trainer.preprocess_logits_for_metrics(logits, labels)
        extra = self._extra_outputs(batch, loss) if self.wants_inputs or self.wants_losses else _NO_EXTRA
        trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)
        all_outputs = trainer._footplate.strategy.gather_outputs(
            (logits, labels, *extra), counts=counts, shares=self.shares
        )
        for number, outputs in enumerate(all_outputs, start=1):
            self._add_outputs(outputs, is_final=is_last and number == len(all_outputs))

    def _extra_outputs(self, batch: Any, loss: Tensor | None) -> tuple[Any, Any, Any]:
        """Returns what `include_for_metrics` requests: the main input, a loss per sample, and the whole batch."""
        trainer, inputs = self.trainer, None
        if self.wants_inputs:
            name = trainer._footplate.model_signature.main_input
            if name not in batch:
                raise ValueError(
                    f"include_for_metrics passes {name!r} to compute_metrics, but the batch has no {name!r}: set "
                    "main_input_name on the model's class, or leave out 'inputs'"
                )
            inputs = trainer._prepare_input(batch[name])
        sample_losses = (
            loss.repeat(batch_length(batch)) if self.by_batch and self.wants_losses and loss is not None else None
        )
        return inputs, sample_losses, batch if self.by_batch and self.wants_inputs else None

    def _add_outputs(self, outputs: tuple[Any, ...], *, is_final: bool) -> None:
        logits, labels, inputs, sample_losses, batch = outputs
        _update(self.metrics, logits, labels, shifts=self.trainer._footplate.model_signature.shifts_labels)
        if self.keeps:
            for name, value in zip(_COLLECTED, (logits, labels, inputs), strict=True):
                self.collected[name].add(value)
        compute = self.trainer.compute_metrics
        if self.by_batch and compute is not None and logits is not None and labels is not None:
            metrics = compute(EvalPrediction(logits, labels, batch, sample_losses), compute_result=is_final)
            self.computed = _named(metrics or {})

    def output(self, prefix: str) -> EvalLoopOutput:
        self._join()
        predictions, label_ids, inputs = (self.collected[name].arrays() for name in _COLLECTED)
        values = {name: value for metric in self.metrics for name, value in metric.compute().items()}
        values |= {name: plain(value) for name, value in self._computed(predictions, label_ids, inputs).items()}
        values |= self._losses(prefix)
        metrics = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": values[name] for name in values}
        return EvalLoopOutput(predictions, label_ids, metrics, self.losses.all_samples)

    def _join(self) -> None:
        """Adds the losses and streaming metrics of the other processes to those of this process."""
        readers = self.trainer._footplate.strategy.readers
        self.losses.join(readers)
        self.exact.join(readers)
        if not self.shares:
            for metric in self.metrics:
                metric.join(readers.all_gather)  # type: ignore[attr-defined]

    def _computed(self, predictions: Any, label_ids: Any, inputs: Any) -> Mapping[str, Any]:
        """Returns the values of the user's `compute_metrics` for all samples."""
        compute, is_asked = self.trainer.compute_metrics, self.keeps and not self.by_batch
        if not is_asked or compute is None or predictions is None or label_ids is None:
            return self.computed
        per_sample = self.losses.per_sample() if self.wants_losses else None
        return _named(compute(EvalPrediction(predictions, label_ids, inputs, per_sample)))

    def _losses(self, prefix: str) -> dict[str, float]:
        losses = self.losses
        if not losses.samples:
            return {}
        values = {f"{prefix}_loss": losses.mean()}
        if losses.left_out:
            # Batches with NaN are left out of the mean loss, as in Hugging Face's Trainer, so their number is logged.
            values["nan_batches"] = losses.left_out
        is_watched = self.knows_items and watched_metric(self.trainer.args).endswith("_loss_exact")
        exact = self.exact.values(0 if is_watched else losses.samples)
        if not exact and is_watched:
            # No labels were counted, because each sample has one label. The mean loss is then exact.
            exact = {"loss_exact": losses.mean()}
        return values | exact


def _named(metrics: Any) -> Mapping[str, Any]:
    if isinstance(metrics, Mapping):
        return metrics
    raise TypeError(
        f"compute_metrics returned a {type(metrics).__name__}: return a dict of names to numbers, such as "
        '{"accuracy": 0.9}'
    )


def _weights_precision(trainer: Trainer) -> Precision:
    """Returns the precision to which `bf16_full_eval` or `fp16_full_eval` converts weights: "no" during training."""
    args = trainer.args
    return "no" if trainer.is_in_train else "bf16" if args.bf16_full_eval else "fp16" if args.fp16_full_eval else "no"


def _marked(batches: Iterator[Any], finds_last: bool) -> Iterator[tuple[Any, bool]]:
    """Yields each batch with True if it is the last one. To know that, one batch is read ahead."""
    if not finds_last:
        return zip(batches, repeat(False), strict=False)
    end = object()
    return ((batch, following is end) for batch, following in pairwise(chain(batches, [end])))


def _update(metrics: Iterable[BatchMetric], logits: Any, labels: Any, *, shifts: bool) -> None:
    if isinstance(labels, tuple):
        labels = labels[0] if labels else None
    if not metrics or labels is None:
        return
    main_logits = logits[0] if isinstance(logits, tuple) else logits
    if shifts:
        main_logits, labels = shifted(main_logits, labels)
    for metric in metrics:
        metric.update(main_logits, labels)


def plain(value: Any) -> Any:
    """Converts scalars of NumPy and torch to numbers that JSON can store, also inside containers."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    if isinstance(value, numpy.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        return value.item()
    return value
