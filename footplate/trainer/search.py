"""A hyperparameter search with optuna. Every trial is a separate training that starts from the same arguments."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from footplate.contract.errors import NotAvailableYet, did_you_mean
from footplate.trainer.internals import Search
from footplate.trainer.losses.smoothing import label_smoother
from footplate.trainer.names import HPSearchBackend

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


class BestRun(NamedTuple):
    """The best trial of a search. Its checkpoints are in the folder that ends with `run-{run_id}`."""

    run_id: str
    objective: float | list[float]
    hyperparameters: dict[str, Any]
    run_summary: Any | None = None


def default_compute_objective(metrics: dict[str, float]) -> float:
    """Returns the sum of the evaluation's metrics, or the loss if there are no metrics.

    Times, counts and memory are not metrics.
    """
    loss = metrics.get("eval_loss")
    names = ("eval_loss", "epoch", "num_input_tokens_seen")
    endings = ("_runtime", "_per_second", "_preparation_time", "_loss_exact", "_nan_batches")
    scores = {
        name: value
        for name, value in metrics.items()
        if name not in names and not name.endswith(endings) and "_mem_" not in name
    }
    if not scores and loss is None:
        raise ValueError("the evaluation has neither a loss nor a metric to search by: pass compute_objective")
    return float(sum(scores.values())) if scores else float(loss)  # type: ignore[arg-type]


def default_hp_space_optuna(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8, 16, 32, 64]),
    }


def hyperparameter_search(
    trainer: Trainer,
    hp_space: Callable[[Any], Mapping[str, Any]] | None = None,
    compute_objective: Callable[[dict[str, float]], Any] | None = None,
    n_trials: int = 20,
    direction: str | list[str] = "minimize",
    backend: str | HPSearchBackend | None = None,
    hp_name: Callable[[Any], str] | None = None,
    **kwargs: Any,
) -> BestRun | list[BestRun]:
    """Trains `n_trials` times with the arguments that `hp_space` suggests.

    `kwargs` are passed to optuna's create_study and optimize. Afterwards the arguments are restored, and the Trainer
    holds the last trial's model.
    """
    internals = trainer._footplate
    optuna = _require_search(trainer, backend, kwargs)
    options = {name: kwargs.pop(name) for name in ("timeout", "gc_after_trial", "catch") if name in kwargs}
    several = isinstance(direction, list)
    study = optuna.create_study(**{"directions" if several else "direction": direction}, **kwargs)
    search = internals.search = Search(
        hp_space or default_hp_space_optuna,
        compute_objective or default_compute_objective,
        hp_name or (lambda trial: f"run-{trial.number}"),
        _values(trainer.args),
    )
    smoother_before = trainer.label_smoother
    try:
        study.optimize(partial(_objective_of, trainer), n_trials=n_trials, **options)
    finally:
        vars(trainer.args).update(search.before)
        trainer.label_smoother = smoother_before
        trainer._train_batch_size = trainer.args.train_batch_size
        internals.search = internals.trial = None
    if several:
        return [BestRun(str(trial.number), trial.values, trial.params) for trial in study.best_trials]
    best = study.best_trial
    return BestRun(str(best.number), best.value, best.params)


def _require_search(trainer: Trainer, backend: Any, kwargs: dict[str, Any]) -> Any:
    backend_name = HPSearchBackend(backend or HPSearchBackend.OPTUNA)
    if backend_name is not HPSearchBackend.OPTUNA:
        raise NotAvailableYet(f"searching with {backend_name} is not available", hint="use backend='optuna'")
    if kwargs.pop("n_jobs", 1) != 1:
        raise ValueError("n_jobs runs trials in parallel, but there is one Trainer: leave it out")
    if trainer.model_init is None:
        raise RuntimeError("To use hyperparameter search, you need to pass your model through a model_init function.")
    if trainer.args.world_size > 1:
        raise NotAvailableYet("a search over several processes is not available", hint="run it in one process")
    try:
        return import_module("optuna")
    except ImportError as error:
        raise ImportError("hyperparameter_search needs the extra search: pip install 'footplate[search]'") from error


def _objective_of(trainer: Trainer, trial: Any) -> Any:
    search = trainer._footplate.search
    assert search is not None
    search.current_objective = None
    trainer.train(trial=trial)
    if search.current_objective is None:  # the trial was never evaluated during training
        search.current_objective = search.objective(trainer.evaluate())
    return search.current_objective


def set_up_trial(trainer: Trainer, trial: Any) -> None:
    """Sets the Trainer's arguments for a trial: those from before the search, with the values that optuna suggests."""
    trainer._footplate.trial = trial
    search = trainer._footplate.search
    if search is None or trial is None:
        return
    suggested = dict(search.space(trial))
    unknown = [name for name in suggested if name not in search.before]
    if unknown and not takes_trial(trainer.model_init):
        hint = did_you_mean(unknown[0], search.before)
        raise ValueError(
            f"the space suggests {', '.join(unknown)}, which is not a training argument"
            f"{f': {hint}' if hint else ''}. A model_init(trial) can read the model's own settings from trial.params"
        )
    values = {name: suggested[name] for name in suggested if name in search.before}
    for name, value in values.items():
        if isinstance(search.before[name], int | float) and isinstance(value, int | float):
            values[name] = type(search.before[name])(value)  # a space may suggest 3 instead of 3.0
    folder = Path(search.before["output_dir"]) / search.name(trial)
    trial_args = type(trainer.args)(**{**search.before, **values, "output_dir": str(folder)})
    vars(trainer.args).update(_values(trial_args))
    trainer._train_batch_size = trainer.args.train_batch_size
    if "label_smoothing_factor" in values:
        trainer.label_smoother = label_smoother(trainer.args.label_smoothing_factor, trainer.model)
    log.info("trial %s: %s", trial.number, trial.params)


def trial_state(trainer: Trainer) -> dict[str, Any]:
    """Returns the fields of TrainerState that describe the current trial, or an empty dict outside of a search."""
    search, trial = trainer._footplate.search, trainer._footplate.trial
    if search is None or trial is None:
        return {}
    return {"is_hyper_param_search": True, "trial_name": search.name(trial), "trial_params": dict(trial.params)}


def report_to_search(trainer: Trainer, trial: Any, step: int, metrics: dict[str, float]) -> None:
    """Reports an evaluation of a trial to optuna, which may end the trial early."""
    search = trainer._footplate.search
    if search is None or trial is None:
        return
    search.current_objective = search.objective(dict(metrics))
    if hasattr(trial, "study") and not trial.study._is_multi_objective():
        trial.report(search.current_objective, step)
        if trial.should_prune():
            raise import_module("optuna").TrialPruned()


def takes_trial(model_init: Callable[..., Any] | None) -> bool:
    """Returns True if `model_init` takes the trial as its one argument. More than one argument is refused."""
    if model_init is None:
        return False
    try:
        parameters = inspect.signature(model_init).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [parameter for parameter in parameters if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    if len(needed) > 1:
        raise RuntimeError("model_init should have 0 or 1 argument.")
    return len(needed) == 1


def _values(args: Any) -> dict[str, Any]:
    return {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
