"""Callbacks that a spec may name under `callbacks`. What they count goes into every checkpoint and comes back."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field


def early_stopping(
    *,
    patience: Annotated[int, Field(ge=1), "Evaluations without a gain after which training stops"] = 1,
    threshold: Annotated[float, Field(ge=0), "By how much the metric must become better for that to be a gain"] = 0.0,
) -> Any:
    """Stops when training's metric_for_best_model, the loss where it names none, no longer becomes better."""
    from footplate.components.callback_kinds import EarlyStopping

    return EarlyStopping(patience, threshold)


def log_learning_rate() -> Any:
    """Logs the rate of every group of parameters beside the loss, as learning_rate_group_0 and so on."""
    from footplate.components.callback_kinds import LogLearningRate

    return LogLearningRate()


def gradient_norms(
    *,
    depth: Annotated[int | None, "How many parts of a layer's name count; null is every layer by itself"] = None,
) -> Any:
    """Logs the norm of each layer's gradients beside the loss, after clipping, as grad_norm/<layer>."""
    from footplate.components.callback_kinds import GradientNorms

    return GradientNorms(depth)


def stop_on_nan(*, steps: Annotated[int, Field(ge=1), "How many such steps of the run are too many"] = 1) -> Any:
    """Ends the job when a log tells of a NaN or infinite loss. Training's max_nan_steps looks at steps in a row."""
    from footplate.components.callback_kinds import StopOnNan

    return StopOnNan(steps)


def ema(
    *,
    decay: Annotated[float, Field(gt=0, lt=1), "How much of the average stays with each step"] = 0.999,
    every: Annotated[int, Field(ge=1), "Steps between two of its moves"] = 1,
    warmup: Annotated[bool, "Whether the first steps move it more, so that it forgets where the weights began"] = True,
) -> Any:
    """Averages the trained weights: averages are evaluated and become the model in the end, weights are trained on."""
    from footplate.components.callback_kinds import Ema

    return Ema(decay, every, warmup)
