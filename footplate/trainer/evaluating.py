"""The Trainer's evaluations: one set or several, predictions, and which evaluation is the best so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from footplate.trainer import evaluate, losses
from footplate.trainer.argument_callbacks import Memory
from footplate.trainer.data import batch_length
from footplate.trainer.overrides import Shortcut, left_out_by
from footplate.trainer.parts import Parts
from footplate.trainer.prediction_step import keys_to_ignore, labels_and_loss
from footplate.trainer.schedules import follows_a_metric
from footplate.trainer.state import EvalLoopOutput, PredictionOutput


class Evaluating(Parts):
    if TYPE_CHECKING:  # of the other parts
        get_eval_dataloader: Callable[..., Any]
        get_test_dataloader: Callable[..., Any]
        compute_loss: Callable[..., Any]
        loss_of: Callable[..., tuple[Tensor, Any, bool]]
        compute_loss_context_manager: Callable[[], AbstractContextManager[Any]]
        log: Callable[..., None]
        _report_to_hp_search: Callable[..., None]
        _trial: Any
        _prepare_input: Callable[[Any], Any]
        _prepare_inputs: Callable[..., dict[str, Any]]
        _get_num_items_in_batch: Callable[..., Tensor | int | None]

    @left_out_by(Shortcut.KNOWN_METRICS)
    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss and metrics of the evaluation data; of each set under its own name where there are several."""
        given = eval_dataset is not None
        data = eval_dataset if given else self.eval_dataset
        if isinstance(data, dict):
            found: dict[str, float] = {}
            for name, each in data.items():
                # By name where it is ours: an override of get_eval_dataloader then knows which one it is asked for.
                found |= self.evaluate(each if given else name, ignore_keys, f"{metric_key_prefix}_{name}")
            return found
        started, memory = time.time(), Memory(is_measured=not self.args.skip_memory_metrics)
        memory.start()
        output = self.evaluation_loop(
            self.get_eval_dataloader(eval_dataset),
            description="Evaluation",
            # Nobody would read the predictions, so they are not kept; streaming metrics see every batch all the same.
            prediction_loss_only=True if self.compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        output.metrics.update(self._eval_speed(metric_key_prefix, started, output.num_samples))
        output.metrics.update(memory.figures(metric_key_prefix))
        self.log(output.metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, output.metrics)
        return output.metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions as arrays, with the labels and metrics where there are labels."""
        started = time.time()
        output = self.evaluation_loop(
            self.get_test_dataloader(test_dataset),
            description="Prediction",
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        output.metrics.update(self._eval_speed(metric_key_prefix, started, output.num_samples))
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, output.metrics)
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    @left_out_by(Shortcut.KNOWN_METRICS)
    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        loss_only = self.args.prediction_loss_only
        keep = not (loss_only if prediction_loss_only is None else prediction_loss_only)
        by_batch = keep and self.args.batch_eval_metrics and self.compute_metrics is not None
        return evaluate.run(
            self,
            dataloader,
            loss_only=loss_only,
            # Metrics that are computed by the batch need no others; a prediction is asked for its predictions.
            keep=keep and not (by_batch and description != "Prediction"),
            ignore_keys=ignore_keys,
            prefix=metric_key_prefix,
            by_batch=by_batch,
        )

    @left_out_by(Shortcut.PREDICTION_STEP, Shortcut.KNOWN_METRICS)
    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Any]:
        """(loss, logits, labels) of one batch, without gradients; each may be None."""
        inputs = self._prepare_inputs(inputs)
        labels, has_loss = labels_and_loss(self, inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            if has_loss:
                items = self._get_num_items_in_batch([inputs], self.strategy.device)
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=items)
                loss = loss.detach().mean() if loss.dim() else loss.detach()
            else:
                loss, outputs = None, model(**inputs)
        if prediction_loss_only:
            return loss, None, None
        keys = keys_to_ignore(self.model) if ignore_keys is None else ignore_keys
        return loss, losses.predictions(outputs, keys, has_loss), labels

    def _loss_weight(self, batch: Any) -> int:
        """As how many samples a batch counts in the mean of losses."""
        return batch_length(batch)

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """In training: a schedule that follows a metric moves by it."""
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        self._report_to_hp_search(self._trial, self.state.global_step, metrics)
        if not skip_scheduler and follows_a_metric(self.lr_scheduler):
            self.lr_scheduler.step(self._metric_for_best(metrics))
        return metrics

    def _metric_for_best(self, metrics: dict[str, float]) -> float:
        name = str(self.args.metric_for_best_model)
        name = name if name.startswith("eval_") else f"eval_{name}"
        if name not in metrics:
            raise KeyError(f"metric_for_best_model is {name!r}, and the evaluation has: {', '.join(metrics)}")
        found = metrics[name]
        if not hasattr(found, "__float__"):
            raise TypeError(f"metric_for_best_model is {name!r}, and it came as {found!r:.80}: the best is of numbers")
        return found

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any = None) -> bool:
        """Notes the best evaluation so far. A NaN is never the best."""
        if self.args.metric_for_best_model is None:
            return False
        value, best = self._metric_for_best(metrics), self.state.best_metric
        better = value == value and (best is None or (value > best if self.args.greater_is_better else value < best))
        if better:
            self.state.best_metric, self.state.best_global_step = value, self.state.global_step
        return better

    def _eval_speed(self, prefix: str, started: float, samples: int) -> dict[str, float]:
        steps = math.ceil(samples / (self.args.eval_batch_size * self.strategy.readers.world))
        return evaluate.speed_metrics(prefix, started, samples=samples, steps=steps)
