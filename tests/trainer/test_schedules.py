"""Learning rates over a run, and which parameters decay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from contract.arguments import TrainingArguments
from contract.arguments.groups import ScheduleName
from worker.trainer.optimizers import decay_parameter_names, optimizer_class, parameter_groups
from worker.trainer.schedules import SHAPES, make_schedule


def rates(name: str, *, warmup: int = 2, total: int = 6, **kwargs: Any) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=10.0)
    schedule = make_schedule(name, optimizer, warmup=warmup, total=total, kwargs=kwargs)
    found = []
    for _ in range(total + 1):
        found.append(round(schedule.get_last_lr()[0], 4))
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("name", "kwargs", "expected"),
    [
        ("linear", {}, [0, 5, 10, 7.5, 5, 2.5, 0]),
        ("constant", {}, [10] * 7),
        ("constant_with_warmup", {}, [0, 5, 10, 10, 10, 10, 10]),
        ("cosine", {}, [0, 5, 10, 8.5355, 5, 1.4645, 0]),
        ("cosine_with_restarts", {"num_cycles": 2}, [0, 5, 10, 5, 10, 5, 0]),
        ("polynomial", {"power": 2, "lr_end": 0}, [0, 5, 10, 5.625, 2.5, 0.625, 0]),
        ("inverse_sqrt", {}, [0, 5, 10, 8.165, 7.0711, 6.3246, 5.7735]),
        ("cosine_with_min_lr", {"min_lr": 1}, [0, 5, 10, 8.682, 5.5, 2.318, 1]),
        ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}, [5, 10, 8.682, 5.5, 2.318, 1, 2.318]),
        ("warmup_stable_decay", {"num_decay_steps": 2, "decay_type": "linear"}, [0, 5, 10, 10, 10, 5, 0]),
    ],
)
def test_rates_of_the_named_schedule(name: str, kwargs: dict[str, Any], expected: list[float]) -> None:
    assert rates(name, **kwargs) == pytest.approx(expected, abs=1e-3)


def test_every_schedule_that_the_arguments_offer_can_be_made() -> None:
    assert set(ScheduleName.__args__) == {*SHAPES, "reduce_lr_on_plateau"}


def test_arguments_that_do_not_fit_a_schedule_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="lr_scheduler_kwargs do not fit linear"):
        rates("linear", min_lr=3)
    with pytest.raises(ValueError, match="needs a floor"):
        rates("cosine_with_min_lr")


def test_biases_and_norms_do_not_decay_and_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    model[2].weight.requires_grad = False

    names = decay_parameter_names(model)
    decay, rest = parameter_groups(model, names, 0.1)

    assert names == ["0.weight", "2.weight"]
    assert (len(decay["params"]), decay["weight_decay"]) == (1, 0.1)
    assert (len(rest["params"]), rest["weight_decay"]) == (4, 0.0)


def test_the_named_optimizer_gets_its_arguments() -> None:
    made, kwargs = optimizer_class(TrainingArguments("out", adam_beta1=0.8))

    assert made is torch.optim.AdamW
    assert kwargs == {"lr": 5e-5, "betas": (0.8, 0.999), "eps": 1e-8, "fused": True}
    assert optimizer_class(TrainingArguments("out", optim="sgd"))[0] is torch.optim.SGD
