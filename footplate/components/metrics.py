"""Metrics that take arguments; all others are known to the Trainer by their names alone.

A metric is made anew for every evaluation, sees it batch by batch, and keeps sums only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

Average = Literal["macro", "micro", "weighted", "binary"]
Averaged = Annotated[
    Average, "Over classes: macro all alike, weighted by how often they are true, micro together, binary class 1 alone"
]


def f1(*, average: Averaged = "macro") -> Any:
    """The harmonic mean of precision and recall; told as f1, or f1_weighted and its like."""
    return _counted("f1", average)


def precision(*, average: Averaged = "macro") -> Any:
    """How much of what is named is true; told as precision, or precision_weighted and its like."""
    return _counted("precision", average)


def recall(*, average: Averaged = "macro") -> Any:
    """How much of what is true is named; told as recall, or recall_weighted and its like."""
    return _counted("recall", average)


def _counted(kind: Literal["f1", "precision", "recall"], average: Average) -> Any:
    from footplate.trainer.metrics import Counted

    return Counted(kind, average, kind if average == "macro" else f"{kind}_{average}")
