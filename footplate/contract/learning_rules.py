"""The rules for optimizers, loss, callbacks and trackers. They read the long form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from footplate.contract.arguments import Seq2SeqTrainingArguments, TrainingArguments
from footplate.contract.arguments.libraries import TRACKERS
from footplate.contract.body import pointer_to
from footplate.contract.errors import Problem, did_you_mean

Json = dict[str, Any]

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
        "follows a metric, and each of several optimizers follows steps or epochs",
    ),
    **dict.fromkeys(("LambdaLR", "MultiplicativeLR"), "needs a function, which JSON cannot hold"),
    **dict.fromkeys(("SequentialLR", "ChainedScheduler"), "needs other schedules, which JSON cannot hold"),
}
"""Schedules that exist, but that no optimizer of a spec can follow."""

TEXT_METRICS = ("bleu", "chrf", "rouge", "sacrebleu")
"""Metrics that compare generated texts with expected ones."""


def broken_learning_rules(document: Json, training: TrainingArguments | None) -> Iterator[Problem]:
    optimizers = [optimizer for optimizer in _list(document.get("optimizers")) if isinstance(optimizer, dict)]
    if document.get("optimizers") == []:
        detail = "is an empty list, so nothing would train the model"
        yield Problem("/optimizers", "too_short", detail, "leave it out for the optimizer of training, or list some")
    if optimizers:
        yield from _several(optimizers, document)
    for index, optimizer in enumerate(_list(document.get("optimizers"))):
        schedule = optimizer.get("schedule") if isinstance(optimizer, dict) else None
        if isinstance(schedule, dict) and isinstance(schedule.get("use"), str):
            yield from _schedule(schedule, f"/optimizers/{index}/schedule")
    if training and document.get("loss") and training.label_smoothing_factor:
        detail = "label_smoothing_factor changes the model's own loss, but the spec names another loss"
        yield _disagree("label_smoothing_factor", detail, "set it in the loss's args, or leave one of the two out")
    if training:
        yield from _stopping(document, training)
        yield from _best(document, training)
        yield from _generating(document, training)
    yield from _trackers(document.get("report_to"))


def _several(optimizers: list[Json], document: Json) -> Iterator[Problem]:
    if all(optimizer.get("loss") for optimizer in optimizers):
        detail = "every optimizer has a loss of its own, so none has the main loss"
        yield Problem("/optimizers", "no_main_loss", detail, "leave the loss of one of them out")
    training = document.get("training")
    arguments = training if isinstance(training, dict) else {}
    for name in OF_ONE_OPTIMIZER:
        if name in arguments:
            detail = f"{name} belongs to training's one optimizer, but the spec lists {len(optimizers)}"
            yield _disagree(name, detail, "set it in the args or the schedule of each of /optimizers")
    if arguments.get("fp16"):
        detail = "fp16 scales one loss, but several optimizers have several"
        yield _disagree("fp16", detail, "use bf16, which needs no scale")


def _schedule(schedule: Json, pointer: str) -> Iterator[Problem]:
    name, args = schedule["use"], schedule.get("args")
    if name in NO_SCHEDULES:
        hint = "name another; GET /components lists them"
        yield Problem(f"{pointer}/use", "not_a_schedule_here", f"{name} {NO_SCHEDULES[name]}", hint)
    knows = isinstance(args, dict) and args.get("num_training_steps") is not None
    if schedule.get("per") == "epoch" and name in OVER_THE_RUN and not knows:
        detail = f"{name} falls over the whole run, whose epochs it does not know"
        yield Problem(f"{pointer}/per", "disagreement", detail, 'use "step", or give args.num_training_steps in epochs')


def _stopping(document: Json, training: TrainingArguments) -> Iterator[Problem]:
    for index, callback in enumerate(_list(document.get("callbacks"))):
        if not isinstance(callback, dict) or callback.get("use") != "early_stopping":
            continue
        if training.eval_strategy == "no":
            detail, hint = "early_stopping needs evaluations, but eval_strategy is no", '"steps" or "epoch"'
            yield Problem(pointer_to("callbacks", index), "disagreement", detail, f"set training.eval_strategy: {hint}")


def _best(document: Json, training: TrainingArguments) -> Iterator[Problem]:
    """Yields a problem if the metric that selects the best model is one that no evaluation computes.

    Own code, plugins and listed metrics may compute others, so the names are known only if there is nothing of these.
    """
    name = training.metric_for_best_model
    computes = any(document.get(field) for field in ("metrics", "compute_metrics", "trainer", "loop", "code"))
    callbacks = [callback.get("use") for callback in _list(document.get("callbacks")) if isinstance(callback, dict)]
    if not name or computes or any(callback not in BUILT_IN_CALLBACKS for callback in callbacks):
        return
    if not name.endswith(("loss", "loss_exact", "runtime", "per_second")):
        detail = f"metric_for_best_model is {name[:80]}, and without metrics an evaluation computes the loss alone"
        yield _disagree("metric_for_best_model", detail, 'use "loss", or list the metric: "metrics": ["accuracy"]')


BUILT_IN_CALLBACKS = ("early_stopping", "ema", "gradient_norms", "log_learning_rate", "stop_on_nan")
"""Callbacks that add nothing to the metrics of an evaluation."""


def _generating(document: Json, training: TrainingArguments) -> Iterator[Problem]:
    """Yields problems of evaluations by generated texts: models that cannot generate, metrics that need logits."""
    generates = isinstance(training, Seq2SeqTrainingArguments) and training.predict_with_generate
    if isinstance(training, Seq2SeqTrainingArguments):
        yield from _who_generates(document, training)
    for index, item in enumerate(_list(document.get("metrics"))):
        metric = item.get("use") if isinstance(item, dict) else None
        at = pointer_to("metrics", index)
        if metric in TEXT_METRICS and not generates and not document.get("trainer"):
            detail = f"{metric} compares texts, but without /training/predict_with_generate an evaluation yields logits"
            yield Problem(at, "disagreement", detail, 'set predict_with_generate, for a model such as "hf/seq2seq"')
        elif isinstance(metric, str) and metric not in TEXT_METRICS and generates:
            detail = f"{metric[:80]} needs logits, but with /training/predict_with_generate there are texts"
            hint = f"use {', '.join(TEXT_METRICS)}, or compute_metrics of your own"
            yield Problem(at, "disagreement", detail, hint)


def _who_generates(document: Json, training: Seq2SeqTrainingArguments) -> Iterator[Problem]:
    if not training.predict_with_generate:
        for name in ("generation_max_length", "generation_num_beams"):
            if getattr(training, name) is not None:
                detail = f"{name} is about generating, but predict_with_generate is off"
                yield _disagree(name, detail, f"set predict_with_generate to true, or leave {name} out")
        return
    leave = "leave predict_with_generate out"
    model, data = document.get("model"), document.get("data")
    used = model.get("use") if isinstance(model, dict) else None
    if document.get("loop"):
        detail = "predict_with_generate is about the Trainer's evaluation, but /loop has its own"
        yield _disagree("predict_with_generate", detail, leave)
    elif isinstance(used, str) and used.startswith(("hf/", "toy/")) and used != _MAKES_TEXTS:
        detail = f"predict_with_generate needs a model that makes texts of texts, but /model/use is {used[:80]}"
        yield _disagree("predict_with_generate", detail, f'use "{_MAKES_TEXTS}", or {leave}')
    if isinstance(data, dict) and not (data.get("eval") or data.get("split") or data.get("test")):
        detail = (
            "predict_with_generate is about evaluating and predicting, and there is neither data.eval nor data.test"
        )
        yield _disagree("predict_with_generate", detail, f"add one of them, or {leave}")


_MAKES_TEXTS = "hf/seq2seq"
"""The built-in model that generates. Other models are checked when they are built, by their `generate`."""


def _trackers(names: Any) -> Iterator[Problem]:
    for index, name in enumerate(_list(names)):
        if isinstance(name, str) and name not in (*TRACKERS, "all"):
            detail = f"no tracker is named {name[:80]!r}; there is: {', '.join(TRACKERS)}"
            yield Problem(pointer_to("report_to", index), "unknown_choice", detail, did_you_mean(name[:80], TRACKERS))


def _disagree(name: str, detail: str, hint: str) -> Problem:
    return Problem(f"/training/{name}", "disagreement", detail, hint)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
