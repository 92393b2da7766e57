"""What was lost since the last log. It stays on the device until somebody reads it: reading makes the host wait."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import numpy
import torch
from torch import Tensor

from footplate.trainer.strategies.peers import Alone

_FOLD_AT = 512


@dataclass(frozen=True, slots=True)
class Taken:
    total: float
    """The sum of the steps' losses, one that is NaN or infinite left out where the arguments ask for that."""
    not_finite: list[int]
    """Steps, counted from the last reading, in which a micro-batch's loss was NaN or infinite."""

    def joined(self, peers: Alone) -> Taken:
        """With those of all processes: a loss is a mean over them, and one that is NaN in one of them is."""
        if peers.world == 1:
            return self
        every = peers.everyone((self.total, self.not_finite))
        total = sum(total for total, _ in every) / len(every)
        return Taken(total, sorted({step for _, steps in every for step in steps}))


class Tally:
    """One number per micro-batch, in order, so that a sum can be made as the reference makes it, bit by bit."""

    def __init__(self, *, leaves_out_not_finite: bool) -> None:
        self._leaves_out = leaves_out_not_finite
        self._losses: list[Tensor] = []
        self._folded: list[Tensor] = []
        self._windows: list[int] = []
        self._steps: list[list[float]] = []
        self._open = self._in_a_row = 0

    def add(self, loss: Tensor) -> None:
        self._losses.append(loss)
        self._open += 1

    def end_step(self) -> None:
        self._windows.append(self._open)
        self._open = 0
        if len(self._losses) >= _FOLD_AT:
            self._fold()

    def forget_step(self) -> None:
        """The step at hand begins again."""
        del self._losses[len(self._losses) - self._open :]
        self._open = 0

    def _fold(self) -> None:
        """Many small tensors become one, still on the device."""
        if self._losses:
            self._folded.append(torch.stack(self._losses).double())
            self._losses.clear()

    def _read(self) -> None:
        """To the host: here the host waits for the device."""
        self._fold()
        values = iter(torch.cat(self._folded).tolist() if self._folded else [])
        for width in self._windows:
            step = list(islice(values, width))
            self._in_a_row = 0 if all(map(math.isfinite, step)) else self._in_a_row + 1
            self._steps.append(step)
        self._folded.clear()
        self._windows.clear()

    def not_finite_in_a_row(self) -> int:
        """How many of the newest steps, without a break, were NaN or infinite."""
        self._read()
        return self._in_a_row

    def take(self) -> Taken:
        """Reads all there is, and begins anew."""
        self._read()
        total, not_finite = numpy.float32(0), []
        for number, step in enumerate(self._steps):
            for value in step:
                if math.isfinite(value) or not self._leaves_out:
                    total = numpy.float32(float(total) + value)
                else:
                    # In its place the mean of what was before, as the reference has it.
                    total = numpy.float32(total + total / numpy.float32(1 + number))
            if not all(map(math.isfinite, step)):
                not_finite.append(number)
        self._steps.clear()
        return Taken(float(total), not_finite)
