"""The metrics that have arguments in a spec: f1, precision and recall. A spec names other metrics without arguments."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from footplate.trainer.metrics.counting import Average, Counted

Averaged = Annotated[
    Average,
    "The average: macro (equal weights), weighted (by labels), micro (all counts together) or binary (class 1 only)",
]


def f1(*, average: Averaged = "macro") -> Any:
    """The harmonic mean of precision and recall, logged as f1, or as f1_weighted and so on."""
    return _counted("f1", average)


def precision(*, average: Averaged = "macro") -> Any:
    """Share of predicted labels that are right, logged as precision, or as precision_weighted and so on."""
    return _counted("precision", average)


def recall(*, average: Averaged = "macro") -> Any:
    """Share of true labels that are predicted, logged as recall, or as recall_weighted and so on."""
    return _counted("recall", average)


def _counted(kind: Literal["f1", "precision", "recall"], average: Average) -> Any:
    return Counted(kind, average, kind if average == "macro" else f"{kind}_{average}")
