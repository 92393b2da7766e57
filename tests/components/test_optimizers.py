"""Tests that all optimizers and schedules of torch and Footplate have a name and a description."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from footplate.contract.learning_rules import NO_SCHEDULES, OVER_THE_RUN
from footplate.runtime.build import load, named_optimizers, registered
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.names import SchedulerType
from tests.support.factories import make_spec

NEEDED: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2, 4]},
    "ExponentialLR": {"gamma": 0.5},
    "CosineAnnealingLR": {"T_max": 4},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 2},
    "OneCycleLR": {"max_lr": 0.5, "num_training_steps": 8},
    "cosine_with_min_lr": {"min_lr": 0.01, "num_training_steps": 8},
    "cosine_warmup_with_min_lr": {"min_lr": 0.01, "num_training_steps": 8},
    "warmup_stable_decay": {"num_decay_steps": 3, "num_training_steps": 8},
    **{name: {"num_training_steps": 8} for name in ("linear", "cosine", "cosine_with_restarts", "polynomial")},
}
MADE_OF_OTHERS = {"LRScheduler"}


@pytest.mark.parametrize("name", sorted(registered("optimizers")))
def test_every_optimizer_reduces_a_loss(name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = load("optimizers", name)([weight])
    getattr(optimizer, "train", lambda: None)()
    before = weight.detach().clone()

    for _ in range(3):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()

    assert weight.square().sum() < before.square().sum()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adamw", "AdamW"), ("adam", "Adam"), ("sgd", "SGD"), ("rmsprop", "RMSprop"), ("adagrad", "Adagrad"),
     ("adadelta", "Adadelta"), ("adamax", "Adamax"), ("nadam", "NAdam"), ("radam", "RAdam"), ("muon", "Muon")],
)  # fmt: skip
def test_the_defaults_of_optimizers_are_those_of_torch(name: str, kind: str) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))

    ours, theirs = load("optimizers", name)([weight]), getattr(torch.optim, kind)([weight])

    assert type(ours) is type(theirs)
    assert ours.defaults == theirs.defaults


@pytest.mark.parametrize("name", sorted(registered("schedules")))
def test_every_schedule_gives_the_same_rates_as_the_class_it_names(name: str) -> None:
    args = NEEDED.get(name, {})
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.4, momentum=0.9)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.4, momentum=0.9)
    ours = load("schedules", name)(optimizer, **args)
    theirs = _theirs(name, other, args)

    for _ in range(8):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(other.param_groups[0]["lr"])
        for item, schedule in ((optimizer, ours), (other, theirs)):
            item.step()
            schedule.step()


def _theirs(name: str, optimizer: Any, args: dict[str, Any]) -> Any:
    if name in set(SchedulerType):
        from footplate.trainer.schedules import get_scheduler

        rest = {key: value for key, value in args.items() if key != "num_training_steps"}
        return get_scheduler(name, optimizer, 0, args.get("num_training_steps", 8), rest)
    total = {"total_steps": args["num_training_steps"]} if name == "OneCycleLR" else {}
    rest = {key: value for key, value in args.items() if key != "num_training_steps"}
    return getattr(lr_scheduler, name)(optimizer, **rest, **total)


def test_every_schedule_of_torch_and_transformers_is_registered_or_declined() -> None:
    """Fails for a new schedule.

    Register the schedule in pyproject.toml, or give a reason against it in footplate/contract/learning_rules.py.
    """
    torchs = {
        name
        for name, item in vars(lr_scheduler).items()
        if isinstance(item, type) and issubclass(item, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert {*torchs, *SchedulerType} - MADE_OF_OTHERS == set(registered("schedules")) | set(NO_SCHEDULES)


def test_the_contract_lists_the_schedules_that_take_num_training_steps() -> None:
    asks = {
        name
        for name in registered("schedules")
        if "num_training_steps" in inspect.signature(load("schedules", name)).parameters
    }
    assert asks == OVER_THE_RUN


def test_a_schedule_ends_at_the_last_step_of_its_own_optimizer() -> None:
    spec = make_spec(optimizers=[
        {"id": "slow", "params": ["weight"], "use": "sgd", "args": {"lr": 1.0}, "schedule": "linear", "every": 3},
        {"id": "other", "params": ["bias"], "use": "sgd", "args": {"lr": 1.0},
         "schedule": {"use": "linear", "args": {"num_training_steps": 4}, "per": "epoch"}},
    ])  # fmt: skip
    model = torch.nn.Linear(2, 1)
    optimizer = NamedOptimizers(model, named_optimizers(spec.optimizers))
    schedule = optimizer.make_schedule(12)

    for _ in range(12):
        optimizer.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        schedule.step()
    schedule.begin_epoch(2)

    assert schedule.get_last_lr() == [0.0, 0.5]
