"""Callbacks that a spec may name under `callbacks`. Their counters are saved in every checkpoint and restored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field


def early_stopping(
    *,
    patience: Annotated[int, Field(ge=1), "Evaluations without an improvement after which training stops"] = 1,
    threshold: Annotated[float, Field(ge=0), "The smallest change of the metric that counts as an improvement"] = 0.0,
) -> Any:
    """Stops when `metric_for_best_model`, or the loss if it is not set, no longer improves."""
    from footplate.components.callback_kinds import EarlyStopping

    return EarlyStopping(patience, threshold)


def log_learning_rate() -> Any:
    """Logs the learning rate of every parameter group with the loss, as learning_rate_group_0 and so on."""
    from footplate.components.callback_kinds import LogLearningRate

    return LogLearningRate()


def gradient_norms(
    *,
    depth: Annotated[int | None, "Group layers by this many parts of their name; null logs every layer"] = None,
) -> Any:
    """Logs the norm of each layer's gradients with the loss, after clipping, as grad_norm/<layer>."""
    from footplate.components.callback_kinds import GradientNorms

    return GradientNorms(depth)


def stop_on_nan(*, steps: Annotated[int, Field(ge=1), "The number of such losses at which the job ends"] = 1) -> Any:
    """Ends the job when a logged loss is NaN or infinite. `max_nan_steps` of training counts steps in a row."""
    from footplate.components.callback_kinds import StopOnNan

    return StopOnNan(steps)


def ema(
    *,
    decay: Annotated[float, Field(gt=0, lt=1), "The share of the average that each update keeps"] = 0.999,
    every: Annotated[int, Field(ge=1), "Optimizer steps between two updates of the average"] = 1,
    warmup: Annotated[bool, "Update more strongly in the first steps, so that the initial weights do not count"] = True,
) -> Any:
    """Keeps a moving average of the weights. The average is evaluated and becomes the final model."""
    from footplate.components.callback_kinds import Ema

    return Ema(decay, every, warmup)
