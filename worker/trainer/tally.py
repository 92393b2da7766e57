"""What was lost since the last log. It stays on the device until somebody reads it: reading makes the host wait."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

_FOLD_AT = 512


@dataclass(frozen=True, slots=True)
class Taken:
    total: float
    """The sum of the steps' losses, one that is NaN or infinite left out where the arguments ask for that."""
    not_finite: list[int]
    """Steps, counted from the last reading, in which a micro-batch's loss was NaN or infinite."""


class Tally:
    """One number per micro-batch, in order, so that a sum can be made as the reference makes it, bit by bit."""

    def __init__(self, *, leaves_out_not_finite: bool) -> None:
        self._leaves_out = leaves_out_not_finite
        self._losses: list[Tensor] = []
        self._folded: list[Tensor] = []
        self._windows: list[int] = []
        self._open = 0

    def add(self, loss: Tensor) -> None:
        self._losses.append(loss)
        self._open += 1

    def end_step(self) -> None:
        self._windows.append(self._open)
        self._open = 0
        if len(self._losses) >= _FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        """Many small tensors become one, still on the device."""
        self._folded.append(torch.stack([each.double() for each in self._losses]))
        self._losses.clear()

    def take(self) -> Taken:
        """Reads all there is, and begins anew."""
        if self._losses:
            self._fold()
        values = torch.cat(self._folded).tolist() if self._folded else []
        total, not_finite, at = numpy.float32(0), [], 0
        for step, width in enumerate(self._windows):
            for value in values[at : at + width]:
                if math.isfinite(value):
                    total = numpy.float32(float(total) + value)
                elif self._leaves_out:
                    # In its place the mean of what was before, as the reference has it.
                    total = numpy.float32(total + total / numpy.float32(1 + step))
                else:
                    total = numpy.float32(value)
            if not all(map(math.isfinite, values[at : at + width])):
                not_finite.append(step)
            at += width
        self._folded.clear()
        self._windows.clear()
        return Taken(float(total), not_finite)
