"""Checks the arguments, data, optimizers and metrics of a new Trainer, so that errors do not appear hours later."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch

from footplate.contract.errors import DatasetError, did_you_mean
from footplate.trainer.data import has_length, require_samples
from footplate.trainer.evaluation import OwnEvaluation
from footplate.trainer.metrics.choose import METRICS
from footplate.trainer.overrides import Shortcut
from footplate.trainer.state import watched_metric

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

FIGURES = ("loss", "loss_exact", "runtime", "samples_per_second", "steps_per_second")


def validate(trainer: Trainer) -> None:
    _check_data(trainer)
    _check_optimizers(trainer)
    _check_metrics(trainer)


def _check_data(trainer: Trainer) -> None:
    args, overrides = trainer.args, trainer._footplate.overrides
    if not callable(trainer.data_collator):
        raise TypeError(
            f"the data_collator is a {type(trainer.data_collator).__name__}, which cannot be called: pass a "
            "function of a list of samples, or an object with __call__"
        )
    if args.eval_strategy != "no" and trainer.eval_dataset is None and "get_eval_dataloader" not in overrides:
        raise ValueError(
            f"eval_strategy is {args.eval_strategy} but there is no eval_dataset: pass one, or set eval_strategy no"
        )
    if (args.eval_strategy != "no" or args.eval_on_start) and "get_eval_dataloader" not in overrides:
        sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
        for name, dataset in sets.items():
            description = f"eval_dataset[{name!r}]" if name else "eval_dataset"
            if dataset is not None:
                require_samples(dataset, description)
            if has_length(dataset) and len(dataset) == 0:
                raise DatasetError(f"{description} is to be evaluated, but is empty: fill it, or leave it out")
    if trainer.train_dataset is not None and "get_train_dataloader" not in overrides:
        require_samples(trainer.train_dataset, "train_dataset")
    if trainer.train_dataset is not None and not has_length(trainer.train_dataset) and args.max_steps <= 0:
        raise ValueError("the data has no length, so its end is unknown: set max_steps")


def _check_optimizers(trainer: Trainer) -> None:
    if trainer.optimizer_cls_and_kwargs is not None and trainer.optimizer is not None:
        raise ValueError("optimizers and optimizer_cls_and_kwargs both set the optimizer: pass one of them")
    if trainer.model_init is not None and (trainer.optimizer is not None or trainer.lr_scheduler is not None):
        raise ValueError(
            "optimizers= cannot be combined with model_init, which makes a new model for every run: override "
            "create_optimizer, or pass optimizer_cls_and_kwargs"
        )
    has_own_loss = "training_step" in trainer._footplate.overrides or "compute_loss" in trainer._footplate.overrides
    if isinstance(trainer.optimizer, torch.optim.Optimizer) and not has_own_loss:
        optimized_ids = {id(parameter) for group in trainer.optimizer.param_groups for parameter in group["params"]}
        if not any(id(parameter) in optimized_ids for parameter in trainer.model.parameters()):
            raise ValueError(
                "the optimizer that was passed has no parameter of this model, so that nothing would be trained: "
                "make it from this model's parameters()"
            )


def _check_metrics(trainer: Trainer) -> None:
    args, compute = trainer.args, trainer.compute_metrics
    unknown = [name for name in args.include_for_metrics if name not in ("inputs", "loss")]
    if unknown:
        raise ValueError(f"include_for_metrics names {unknown[0]!r}: known are inputs and loss")
    if args.batch_eval_metrics and compute is not None and not _takes(compute, "compute_result"):
        raise ValueError(
            "with batch_eval_metrics, compute_metrics is called for every batch and must take compute_result, which is "
            "True the last time"
        )
    watched = args.metric_for_best_model
    if watched is None or args.eval_strategy == "no":
        return
    overrides = trainer._footplate.overrides
    overridden = [name for name in ("compute_loss", "prediction_step") if name in overrides]
    may_add = compute is not None or "evaluate" in overrides or "evaluation_loop" in overrides
    if overridden and not may_add and watched_metric(args).endswith("_loss_exact"):
        raise ValueError(
            f"metric_for_best_model is {watched!r}, the mean loss per label, but {type(trainer).__name__} overrides "
            f'{overridden[0]}, so the number of labels in its loss is not known: set metric_for_best_model to "loss"'
        )
    metric_names = _known_metrics(trainer)
    name = watched.removeprefix("eval_")
    if metric_names is not None and name not in metric_names:
        hint = did_you_mean(name, metric_names) or f"there will be {', '.join(sorted(metric_names))}"
        raise ValueError(f"metric_for_best_model is {watched!r}, which no evaluation will have: {hint}")


def _known_metrics(trainer: Trainer) -> set[str] | None:
    """Returns the names of all metrics of an evaluation, or None if the user's code may add others."""
    if trainer.compute_metrics is not None or not trainer._footplate.overrides.allow(Shortcut.KNOWN_METRICS):
        return None
    if any(not isinstance(metric, str) or metric not in METRICS for metric in trainer._footplate.metrics):
        return None
    sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {}
    if any(isinstance(rows, OwnEvaluation) for rows in [*sets.values(), trainer.eval_dataset]):
        return None
    names = {*FIGURES, *(str(metric) for metric in trainer._footplate.metrics)}
    return {f"{set_name}_{name}" for set_name in sets for name in names} or names


def _takes(function: object, name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return True
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
