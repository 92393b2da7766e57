"""The area under the ROC curve. Scores are counted in buckets, so that memory does not grow with the samples."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from footplate.trainer.losses.labels import IGNORE
from footplate.trainer.metrics.counting import several_labels
from footplate.trainer.metrics.sums import Sums

_BYTES = 64 * 2**20
_FINEST = 18


class Auroc(Sums):
    """The probability that a positive sample has a higher score than a negative one. Ties count half.

    The result is the mean over classes that have positive and negative samples. A bucket is the leading 18 bits of a
    score as a float.
    Scores of any magnitude are distinguished if they differ by more than a 512th. With very many classes the buckets
    are coarser, so that all of them stay below 64 MiB.
    """

    def __init__(self) -> None:
        super().__init__("auroc")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        scores, positive, counts = _scores(self.name, logits.float(), labels)
        classes = scores.shape[1]
        bits = min(_FINEST, int(math.log2(_BYTES / 16 / classes)))
        at = _bucket(scores, bits) + (torch.arange(classes, device=scores.device) << bits)
        for name, selected in (("positive", positive & counts), ("negative", ~positive & counts)):
            zeros = torch.zeros(classes << bits, dtype=torch.long, device=scores.device)
            self.add(**{name: zeros.scatter_add_(0, at.flatten(), selected.long().flatten()).view(classes, -1)})

    def value(self) -> float:
        positive, negative = self.sums["positive"].double(), self.sums["negative"].double()
        negatives_below = negative.cumsum(1) - negative
        pairs = positive.sum(1) * negative.sum(1)
        ordered = (positive * (negatives_below + negative / 2)).sum(1)
        has_pairs = pairs > 0
        return float((ordered[has_pairs] / pairs[has_pairs]).mean()) if bool(has_pairs.any()) else math.nan


def _scores(metric: str, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Returns scores, positive labels and the mask of labels to use, each of shape (samples, classes).

    Two classes become one, whose score is the difference of both logits.
    """
    if several_labels(metric, logits, labels):
        scores, positive = logits.reshape(-1, logits.shape[-1]), labels.bool().reshape(-1, logits.shape[-1])
        return scores, positive, torch.ones_like(positive)
    labels = labels.reshape(-1, 1)
    counts = labels.ne(IGNORE)
    logits = logits.reshape(len(labels), -1)
    classes = logits.shape[1]
    if classes == 1:
        return logits, labels.eq(1), counts
    if classes == 2:
        return logits[:, 1:] - logits[:, :1], labels.eq(1), counts
    # Log odds of each class against all others keep their order where probabilities round to 1.
    chance = logits.log_softmax(-1)
    scores = chance - torch.log1p(-chance.exp().clamp(max=1 - 1e-7))
    return scores, labels.eq(torch.arange(classes, device=labels.device)), counts.expand_as(scores)


def _bucket(scores: Tensor, bits: int) -> Tensor:
    """Returns the number of each score's bucket: the leading bits of the float, changed so that the order is kept."""
    # Adding zero turns negative zero into positive zero.
    whole = (scores.contiguous() + 0.0).view(torch.int32).long()
    ordered = torch.where(whole < 0, -(whole & 0x7FFFFFFF), whole) + 0x80000000
    return ordered >> (32 - bits)
