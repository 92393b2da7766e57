"""The Trainer's evaluation methods: one or several evaluation sets, predictions, and the best evaluation so far."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from footplate.trainer import evaluation_pass
from footplate.trainer.losses.loss import predictions
from footplate.trainer.overrides import Shortcut, left_out_by
from footplate.trainer.prediction_step import keys_to_ignore, labels_and_loss
from footplate.trainer.reporting import speed_metrics
from footplate.trainer.schedules import follows_a_metric
from footplate.trainer.state import PredictionOutput, watched_metric

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


class OwnEvaluation(ABC):
    """An evaluation set that computes its metrics itself, instead of the mean loss over batches."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    @abstractmethod
    def check(self, trainer: Trainer) -> None:
        """Raises an error before the first step if this Trainer's model cannot be evaluated."""

    @abstractmethod
    def metrics(self, trainer: Trainer) -> dict[str, float]:
        """Returns the metrics of the model, which is in eval mode. All processes of a job call this method."""


@left_out_by(Shortcut.KNOWN_METRICS)
def evaluate(
    trainer: Trainer, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
) -> dict[str, float]:
    """Returns loss and metrics of the evaluation data. With several sets, names include the set's name."""
    is_given = eval_dataset is not None
    data = eval_dataset if is_given else trainer.eval_dataset
    if isinstance(data, dict):
        metrics: dict[str, float] = {}
        for name, dataset in data.items():
            # The Trainer's own sets are passed by name, so that an override of get_eval_dataloader knows which one.
            metrics |= trainer.evaluate(dataset if is_given else name, ignore_keys, f"{metric_key_prefix}_{name}")
        return metrics
    start_time = time.time()
    trainer._footplate.memory.start("eval")
    sets = trainer.eval_dataset
    rows = sets.get(data) if isinstance(data, str) and isinstance(sets, Mapping) else data
    if isinstance(rows, OwnEvaluation):
        output = evaluation_pass.run_own(trainer, rows)
    else:
        output = trainer.evaluation_loop(
            trainer.get_eval_dataloader(eval_dataset),
            description="Evaluation",
            # Without compute_metrics nothing reads the predictions, so they are not kept. Streaming metrics still run.
            prediction_loss_only=True if trainer.compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
    output.metrics.update(_costs(trainer, "eval", metric_key_prefix, start_time, output.num_samples))
    trainer.log(output.metrics)
    trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, output.metrics)
    return output.metrics


def predict(
    trainer: Trainer, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
) -> PredictionOutput:
    """Returns predictions as arrays, with labels and metrics if the data has labels."""
    start_time = time.time()
    trainer._footplate.memory.start("test")
    output = trainer.evaluation_loop(
        trainer.get_test_dataloader(test_dataset),
        description="Prediction",
        ignore_keys=ignore_keys,
        metric_key_prefix=metric_key_prefix,
    )
    output.metrics.update(_costs(trainer, "test", metric_key_prefix, start_time, output.num_samples))
    trainer.control = trainer.callback_handler.on_predict(trainer.args, trainer.state, trainer.control, output.metrics)
    return PredictionOutput(output.predictions, output.label_ids, output.metrics)


@left_out_by(Shortcut.PREDICTION_STEP, Shortcut.KNOWN_METRICS)
def prediction_step(
    trainer: Trainer,
    model: nn.Module,
    inputs: dict[str, Any],
    prediction_loss_only: bool,
    ignore_keys: list[str] | None = None,
) -> tuple[Tensor | None, Any, Any]:
    """Returns loss, logits and labels of one batch, without gradients. Each may be None."""
    inputs = trainer._prepare_inputs(inputs)
    labels, has_loss = labels_and_loss(trainer, inputs)
    with torch.no_grad(), trainer.compute_loss_context_manager():
        if has_loss:
            items = trainer._get_num_items_in_batch([inputs], trainer._footplate.strategy.device)
            loss, outputs = trainer.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=items)
            loss = loss.detach().mean() if loss.dim() else loss.detach()
        else:
            loss, outputs = None, model(**inputs)
    if prediction_loss_only:
        return loss, None, None
    keys = keys_to_ignore(trainer.model) if ignore_keys is None else ignore_keys
    return loss, predictions(outputs, keys, has_loss), labels


def evaluate_in_training(
    trainer: Trainer, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
) -> dict[str, float]:
    """Evaluates during training, and passes the metric to a schedule that follows one, such as reduce-on-plateau."""
    metrics = trainer.evaluate(ignore_keys=ignore_keys_for_eval)
    trainer._report_to_hp_search(trainer._footplate.trial, trainer.state.global_step, metrics)
    if not skip_scheduler and follows_a_metric(trainer.lr_scheduler):
        trainer.lr_scheduler.step(_metric_for_best(trainer, metrics))
    return metrics


def _metric_for_best(trainer: Trainer, metrics: dict[str, float]) -> float:
    name = watched_metric(trainer.args)
    if name not in metrics:
        is_empty = metrics.get("eval_samples_per_second") == 0
        reason = ", because eval_dataset gave no batch" if is_empty else ""
        raise KeyError(f"metric_for_best_model is {name!r}, but the evaluation has: {', '.join(metrics)}{reason}")
    value = metrics[name]
    if not hasattr(value, "__float__"):
        raise TypeError(f"metric_for_best_model is {name!r}, but its value is {value!r:.80}: it must be a number")
    return value


def determine_best_metric(trainer: Trainer, metrics: dict[str, float], trial: Any = None) -> bool:
    """Records this evaluation if it is the best so far, and then returns True. A NaN is never the best."""
    if trainer.args.metric_for_best_model is None:
        return False
    value, best = _metric_for_best(trainer, metrics), trainer.state.best_metric
    better = value == value and (best is None or (value > best if trainer.args.greater_is_better else value < best))
    if better:
        trainer.state.best_metric, trainer.state.best_global_step = value, trainer.state.global_step
    return better


def _costs(trainer: Trainer, stage: str, prefix: str, start_time: float, samples: int) -> dict[str, float]:
    """Returns the time, the speed and the memory of an evaluation or a prediction."""
    steps = math.ceil(samples / (trainer.args.eval_batch_size * trainer._footplate.strategy.readers.world))
    speed = speed_metrics(prefix, start_time, samples=samples, steps=steps)
    return {**speed, **trainer._footplate.memory.figures(stage)}
