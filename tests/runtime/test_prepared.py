"""Tests the error that names the objects which a loop in several processes did not prepare with its accelerator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from footplate.contract.errors import OwnCodeError
from footplate.runtime.unprepared import require_prepared


class Loop:
    """A training loop that prepares only the named objects with its accelerator."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2)
        self.scheduler = StepLR(self.optimizer, 1)

    def prepare(self, *names: str) -> None:
        for name in names:
            setattr(self, name, self.accelerator.prepare(getattr(self, name)))

    def train(self) -> None:
        for (x,) in self.loader:
            self.model(x).sum().backward()
            self.optimizer.step()
            self.scheduler.step()


@pytest.fixture
def loop() -> Iterator[Loop]:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True)
    handle = require_prepared(accelerator)
    yield Loop(accelerator)
    handle.remove()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_a_loop_with_all_objects_prepared_trains(loop: Loop) -> None:
    loop.prepare("model", "optimizer", "loader", "scheduler")

    loop.train()


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("optimizer", "its optimizer, SGD, was not prepared"),
        ("model", "its model was not prepared"),
        ("loader", "its data loader was not prepared"),
        ("scheduler", "its scheduler, StepLR, was not prepared"),
    ],
)
def test_an_object_that_was_not_prepared_stops_the_loop_and_is_named(loop: Loop, missing: str, sentence: str) -> None:
    loop.prepare(*[name for name in ("model", "optimizer", "loader", "scheduler") if name != missing])

    with pytest.raises(OwnCodeError) as error:
        loop.train()

    assert sentence in error.value.message
    assert "job.accelerator.prepare" in str(error.value.hint)


def test_schedules_that_follow_a_metric_or_are_unused_need_no_prepare(loop: Loop) -> None:
    own, later = StepLR(loop.optimizer, 1), ReduceLROnPlateau(loop.optimizer)
    loop.prepare("model", "optimizer", "loader", "scheduler")
    later.step(1.0)

    loop.train()

    assert own.last_epoch == 0
