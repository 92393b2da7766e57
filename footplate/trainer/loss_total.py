"""The sum of the training losses since the last log. It is read at a log only, because reading waits for the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import numpy
import torch
from torch import Tensor

from footplate.trainer.strategies.peers import OneProcess

_LOSSES_BEFORE_STACKING = 512


@dataclass(frozen=True, slots=True)
class LossSum:
    total: float
    """The sum of the steps' losses. With `logging_nan_inf_filter`, losses that are NaN or infinite are left out."""
    not_finite: list[int]
    """The steps in which a micro-batch's loss was NaN or infinite, counted from the last log."""

    def joined(self, peers: OneProcess) -> LossSum:
        """Averages the loss over all processes. A step is not finite if its loss was NaN or infinite on any of them."""
        if peers.world == 1:
            return self
        sums = peers.all_gather((self.total, self.not_finite))
        total = sum(total for total, _ in sums) / len(sums)
        return LossSum(total, sorted({step for _, steps in sums for step in steps}))


class Tally:
    """Keeps the loss of each micro-batch in order, so that the sum equals Hugging Face's bit by bit."""

    def __init__(self, *, leaves_out_not_finite: bool) -> None:
        self._leaves_out = leaves_out_not_finite
        self._losses: list[Tensor] = []
        self._stacked: list[Tensor] = []
        self._windows: list[int] = []
        self._steps: list[list[float]] = []
        self._open = self._in_a_row = 0

    def add(self, loss: Tensor) -> None:
        self._losses.append(loss)
        self._open += 1

    def end_step(self) -> None:
        self._windows.append(self._open)
        self._open = 0
        if len(self._losses) >= _LOSSES_BEFORE_STACKING:
            self._stack()

    def forget_step(self) -> None:
        """Drops the losses of the current step, for example before it is repeated after an out-of-memory error."""
        del self._losses[len(self._losses) - self._open :]
        self._open = 0

    def _stack(self) -> None:
        """Stacks the losses into one tensor, still on the device."""
        if self._losses:
            self._stacked.append(torch.stack(self._losses).double())
            self._losses.clear()

    def _read(self) -> None:
        """Copies the losses to the host, which waits for the device here."""
        self._stack()
        values = iter(torch.cat(self._stacked).tolist() if self._stacked else [])
        for width in self._windows:
            step = list(islice(values, width))
            self._in_a_row = 0 if all(map(math.isfinite, step)) else self._in_a_row + 1
            self._steps.append(step)
        self._stacked.clear()
        self._windows.clear()

    def not_finite_in_a_row(self) -> int:
        """Returns the number of latest consecutive steps whose loss was NaN or infinite."""
        self._read()
        return self._in_a_row

    def take(self) -> LossSum:
        """Returns the sum of the losses since the last call, and starts again from zero."""
        self._read()
        total, not_finite = numpy.float32(0), []
        for number, step in enumerate(self._steps):
            for value in step:
                if math.isfinite(value) or not self._leaves_out:
                    total = numpy.float32(float(total) + value)
                else:
                    # The mean of the losses so far replaces a NaN or infinite loss, as in Hugging Face's Trainer.
                    total = numpy.float32(total + total / numpy.float32(1 + number))
            if not all(map(math.isfinite, step)):
                not_finite.append(number)
        self._steps.clear()
        return LossSum(float(total), not_finite)
