"""Callbacks that a spec may name under `callbacks`. What they count goes into every checkpoint and comes back."""

from __future__ import annotations

from typing import Annotated, Any


def early_stopping(
    *,
    patience: Annotated[int, "Evaluations without a gain after which training stops"] = 1,
    threshold: Annotated[float, "By how much the metric must become better for that to be a gain"] = 0.0,
) -> Any:
    """Stops when training's metric_for_best_model, the loss where it names none, no longer becomes better."""
    from worker.components.callback_kinds import EarlyStopping

    return EarlyStopping(patience, threshold)
