"""The rules for optimizers, loss, callbacks, metrics and trackers. They read the typed spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from footplate.contract.arguments import Seq2SeqTrainingArguments, stated
from footplate.contract.arguments.libraries import TRACKERS
from footplate.contract.errors import Problem, did_you_mean
from footplate.contract.spec_parts import Component, Schedule

if TYPE_CHECKING:
    from footplate.contract.spec import JobSpec

OF_ONE_OPTIMIZER = (
    "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "optim_target_modules",
    "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps",
)  # fmt: skip
"""Arguments of the single optimizer of `training`. They have no meaning if several optimizers are listed."""

OVER_THE_RUN = frozenset(
    {
        "linear", "cosine", "cosine_with_restarts", "polynomial", "cosine_with_min_lr", "cosine_warmup_with_min_lr",
        "warmup_stable_decay", "OneCycleLR",
    }
)  # fmt: skip
"""Schedules that need the length of the run."""

NO_SCHEDULES: dict[str, str] = {
    **dict.fromkeys(
        ("reduce_lr_on_plateau", "greedy", "ReduceLROnPlateau"),
        "follows a metric, but with several optimizers a schedule can only follow steps or epochs",
    ),
    **dict.fromkeys(("LambdaLR", "MultiplicativeLR"), "needs a function, which JSON cannot hold"),
    **dict.fromkeys(("SequentialLR", "ChainedScheduler"), "needs other schedules, which JSON cannot hold"),
}
"""Schedules that exist, but that no optimizer of a spec can follow."""

TEXT_METRICS = ("bleu", "chrf", "rouge", "sacrebleu")
"""Metrics that compare generated texts with expected ones."""


def optimizer_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields problems of several optimizers: wrong schedules, equal ids, and settings for a single optimizer."""
    if not spec.optimizers:
        return
    ids = set[str]()
    if all(optimizer.loss for optimizer in spec.optimizers):
        detail = "every optimizer names a loss, so no optimizer trains with the main loss"
        yield Problem("/optimizers", "no_main_loss", detail, "leave `loss` out of one optimizer")
    for name in OF_ONE_OPTIMIZER:
        if name in stated(spec.training):
            detail = f"{name} is for the single optimizer of training, but the spec lists several optimizers"
            yield _disagree(name, detail, "set it in the args or the schedule of each optimizer")
    if spec.training.fp16:
        detail = "fp16 scales only one loss, so it does not work with several optimizers"
        yield _disagree("fp16", detail, "use bf16, which needs no scale")
    for index, optimizer in enumerate(spec.optimizers):
        if optimizer.schedule is not None:
            yield from _schedule(optimizer.schedule, f"/optimizers/{index}/schedule")
        if optimizer.id in ids:
            hint = "give each optimizer its own id"
            yield Problem(f"/optimizers/{index}/id", "duplicate_id", "another optimizer has the same id", hint)
        ids.add(optimizer.id)


def _schedule(schedule: Schedule, pointer: str) -> Iterator[Problem]:
    name = schedule.use
    if name in NO_SCHEDULES:
        hint = "name another schedule; GET /components lists them"
        yield Problem(f"{pointer}/use", "not_a_schedule_here", f"{name} {NO_SCHEDULES[name]}", hint)
    if schedule.per == "epoch" and name in OVER_THE_RUN and schedule.args.get("num_training_steps") is None:
        detail = f"{name} needs the number of epochs of the whole run, which is not known before training"
        yield Problem(f"{pointer}/per", "disagreement", detail, 'use "step", or give args.num_training_steps in epochs')


def loss_problems(spec: JobSpec) -> Iterator[Problem]:
    if spec.loss is not None and spec.training.label_smoothing_factor:
        detail = "label_smoothing_factor changes the model's own loss, but the spec names another loss"
        yield _disagree("label_smoothing_factor", detail, "set it in the loss's args, or leave one of the two out")


def stopping_problems(spec: JobSpec) -> Iterator[Problem]:
    for index, callback in enumerate(spec.callbacks):
        if callback.use == "early_stopping" and spec.training.eval_strategy == "no":
            detail, hint = "early_stopping needs evaluations, but eval_strategy is no", '"steps" or "epoch"'
            yield Problem(f"/callbacks/{index}", "disagreement", detail, f"set training.eval_strategy: {hint}")


def best_model_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields a problem if the metric that selects the best model is one that no evaluation computes.

    Nothing is checked if the spec has own code, or a metric, callback or evaluation set that may compute any metric.
    """
    name, names = spec.training.metric_for_best_model, _names_in_evaluations(spec)
    if not name or names is None or name.removeprefix("eval_") in names:
        return
    if spec.metrics:
        detail = f"metric_for_best_model is {name[:80]}, which no evaluation computes"
        hint = did_you_mean(name.removeprefix("eval_")[:80], names) or f"use one of {', '.join(sorted(names)[:20])}"
    else:
        detail = f"metric_for_best_model is {name[:80]}, and without metrics an evaluation computes the loss alone"
        hint = f'use "{min(sorted(names), key=len)}", or list the metric: "metrics": ["accuracy"]'
    yield _disagree("metric_for_best_model", detail, hint)


def _names_in_evaluations(spec: JobSpec) -> set[str] | None:
    """Returns the names, without `eval_`, of all that an evaluation computes. Returns None if they are not known."""
    sets = {path: component for path, component in spec.data.sets() if path[0] == "eval"}
    may_be_any = spec.compute_metrics or spec.trainer or spec.loop or spec.code
    if may_be_any or any(callback.use not in BUILT_IN_CALLBACKS for callback in spec.callbacks):
        return None
    if any(not component.use.startswith(("files/", "toy/")) for component in sets.values()):
        # Another set, such as lm-eval, may compute its own metrics.
        return None
    metric_names = [_name_in_evaluations(metric) for metric in spec.metrics]
    if None in metric_names:
        return None
    names = {*_ALWAYS_COMPUTED, *filter(None, metric_names)}
    return {f"{path[1]}_{name}" for path in sets if len(path) > 1 for name in names} or names


def _name_in_evaluations(metric: Component) -> str | None:
    """Returns the name of a built-in metric that is one number. Returns None for other metrics."""
    if not metric.args:
        return metric.use if metric.use in _OF_ONE_NUMBER else None
    if metric.use not in _AVERAGED or metric.args.keys() != {"average"}:
        return None
    return metric.use if metric.args["average"] == "macro" else f"{metric.use}_{metric.args['average']}"


_ALWAYS_COMPUTED = ("loss", "loss_exact", "runtime", "samples_per_second", "steps_per_second")
_AVERAGED = ("f1", "precision", "recall")
_AVERAGES = ("macro", "micro", "weighted", "binary")
_OF_ONE_NUMBER = frozenset({
    "accuracy", "auroc", "mae", "mcc", "mse", "perplexity", "rmse",
    *_AVERAGED, *(f"{kind}_{average}" for kind in _AVERAGED for average in _AVERAGES),
})  # fmt: skip
BUILT_IN_CALLBACKS = ("early_stopping", "ema", "gradient_norms", "log_learning_rate", "stop_on_nan")
"""Callbacks that add nothing to the metrics of an evaluation."""


def metric_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields problems of metrics that compare texts if evaluations return logits, and of the opposite case."""
    generates = getattr(spec.training, "predict_with_generate", False)
    for index, metric in enumerate(spec.metrics):
        if metric.use in TEXT_METRICS and not generates and spec.trainer is None:
            detail = (
                f"{metric.use} compares texts, but without /training/predict_with_generate an evaluation yields logits"
            )
            hint = 'set predict_with_generate, for a model such as "hf/seq2seq"'
            yield Problem(f"/metrics/{index}", "disagreement", detail, hint)
        elif metric.use not in TEXT_METRICS and generates:
            detail = (
                f"{metric.use[:80]} needs logits, but with /training/predict_with_generate an evaluation yields texts"
            )
            hint = f"use {', '.join(TEXT_METRICS)}, or compute_metrics of your own"
            yield Problem(f"/metrics/{index}", "disagreement", detail, hint)


def generation_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields problems of evaluations by generated texts: models that cannot generate, and jobs without evaluations."""
    leave = "leave predict_with_generate out"
    if not isinstance(spec.training, Seq2SeqTrainingArguments):
        return
    if not spec.training.predict_with_generate:
        for name in ("generation_max_length", "generation_num_beams"):
            if getattr(spec.training, name) is not None:
                detail = f"{name} is an option of generation, but predict_with_generate is off"
                yield _disagree(name, detail, f"set predict_with_generate to true, or leave {name} out")
        return
    if spec.loop is not None:
        detail = "predict_with_generate applies to the Trainer's evaluations, but the spec's loop evaluates by itself"
        yield _disagree("predict_with_generate", detail, leave)
    elif spec.model is not None and spec.model.use.startswith(("hf/", "toy/")) and spec.model.use != _MAKES_TEXTS:
        detail = f"predict_with_generate needs a text-to-text model, but /model/use is {spec.model.use}"
        yield _disagree("predict_with_generate", detail, f'use "{_MAKES_TEXTS}", or {leave}')
    if not (spec.data.is_empty or spec.data.has_evaluation or spec.data.test):
        detail = (
            "predict_with_generate applies to evaluation and prediction, and there is neither data.eval nor data.test"
        )
        yield _disagree("predict_with_generate", detail, f"add one of them, or {leave}")


_MAKES_TEXTS = "hf/seq2seq"
"""The built-in model that generates. Other models are checked when they are built, by their `generate`."""


def tracker_problems(spec: JobSpec) -> Iterator[Problem]:
    for index, name in enumerate(spec.report_to):
        if name not in (*TRACKERS, "all"):
            detail = f"no tracker is named {name[:80]!r}. The trackers are {', '.join(TRACKERS)}"
            yield Problem(f"/report_to/{index}", "unknown_choice", detail, did_you_mean(name[:80], TRACKERS))


def _disagree(name: str, detail: str, hint: str) -> Problem:
    return Problem(f"/training/{name}", "disagreement", detail, hint)
