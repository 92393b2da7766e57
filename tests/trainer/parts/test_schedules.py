"""Learning rates equal those of transformers to the last bit, whatever a schedule is called with."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import optimization as theirs
from transformers.trainer_utils import SchedulerType as TheirTypes

from footplate.trainer import schedules as ours
from footplate.trainer.greedy import GreedyLR
from footplate.trainer.names import SchedulerType

STEPS = 200
FUNCTIONS = [name for name in vars(ours) if name.startswith("get_") and name != "get_args"]
GRID: dict[str, dict[str, list[Any]]] = {
    "cosine": {"num_cycles": [0.5, 1.5]},
    "cosine_with_restarts": {"num_cycles": [1, 3]},
    "polynomial": {"lr_end": [1e-7, 1e-3], "power": [1.0, 2.5]},
    "inverse_sqrt": {"timescale": [None, 77]},
    "cosine_with_min_lr": {"min_lr": [None, 1e-4], "min_lr_rate": [None, 0.1], "num_cycles": [0.5, 1.3]},
    "cosine_warmup_with_min_lr": {
        "min_lr": [None, 1e-4],
        "min_lr_rate": [None, 0.1],
        "warmup_lr_rate": [None, 0.2],
    },
    "warmup_stable_decay": {
        "num_decay_steps": [40],
        "num_stable_steps": [None, 50],
        "warmup_type": ["linear", "cosine", "1-sqrt"],
        "decay_type": ["linear", "cosine", "1-sqrt"],
        "min_lr_ratio": [0, 0.1],
    },
}


def an_optimizer() -> torch.optim.Optimizer:
    """Returns an optimizer with two groups of different learning rates. A schedule scales both."""
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    return torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 3e-3}], lr=7e-3)


def cases() -> Iterator[tuple[str, int, dict[str, Any]]]:
    for name in SchedulerType:
        if name in ("reduce_lr_on_plateau", "greedy"):
            continue
        grid = GRID.get(name, {})
        for values in itertools.product(*grid.values()):
            kwargs = dict(zip(grid, values, strict=True))
            if "min_lr" in kwargs and (kwargs["min_lr"] is None) == (kwargs["min_lr_rate"] is None):
                continue
            for warmup in (0, 1, 30):
                yield name, warmup, kwargs


def rates(get_scheduler: Callable[..., Any], name: str, warmup: int, kwargs: dict[str, Any]) -> list[list[float]]:
    optimizer = an_optimizer()
    schedule = get_scheduler(name, optimizer, warmup, STEPS - 20, kwargs or None)
    result = []
    for _ in range(STEPS):
        result.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    return result


@pytest.mark.filterwarnings("ignore:Both num_training_steps")
def test_every_learning_rate_is_bit_identical_to_that_of_transformers() -> None:
    compared = 0
    for name, warmup, kwargs in cases():
        expected = rates(theirs.get_scheduler, name, warmup, kwargs)
        assert rates(ours.get_scheduler, name, warmup, kwargs) == expected, (name, warmup, kwargs)
        compared += 1
    assert compared > 150


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_schedule_function_has_the_signature_of_transformers(name: str) -> None:
    mine, other = (inspect.signature(getattr(module, name)).parameters for module in (ours, theirs))

    assert [(value.name, value.default) for value in mine.values()] == [
        (value.name, value.default) for value in other.values()
    ]


def test_the_schedule_names_are_those_of_transformers() -> None:
    assert {name.name: str(name) for name in SchedulerType} == {name.name: name.value for name in TheirTypes}
    assert set(ours.TYPE_TO_SCHEDULER_FUNCTION) == set(SchedulerType)


GREEDY: list[dict[str, Any]] = [
    {"patience": 2, "min_lr": 1e-3, "max_lr": 1e-2},
    {"patience": 1, "factor": 0.5, "cooldown": 2, "warmup": 3, "min_lr": [1e-4, 1e-3], "max_lr": [0.1, 0.2]},
    {"patience": 1, "smooth": True, "window_size": 5, "threshold_mode": "rel", "threshold": 1e-2, "min_lr": 1e-4},
    {"mode": "max", "patience": 0, "min_lr": 2e-3, "reset_start": 3},
]


def metrics() -> list[float]:
    noise = torch.Generator().manual_seed(3)
    falling = torch.linspace(3, 1, STEPS) + 0.3 * torch.randn(STEPS, generator=noise)
    return [float(item) for item in falling]


@pytest.mark.parametrize("kwargs", GREEDY)
def test_the_greedy_schedule_follows_its_metric_as_in_transformers(kwargs: dict[str, Any]) -> None:
    mine, other = an_optimizer(), an_optimizer()
    schedule, reference = ours.get_greedy_schedule(mine, **kwargs), theirs.get_greedy_schedule(other, **kwargs)
    rates = set()
    for metric in metrics():
        schedule.step(metric)
        reference.step(metric)
        rates.add(schedule.get_last_lr()[0])
        assert schedule.get_last_lr() == reference.get_last_lr() == [group["lr"] for group in mine.param_groups]
        assert (schedule.best, schedule.reset_start) == (reference.best, reference.reset_start)
    assert len(rates) > 2


@pytest.mark.parametrize("kwargs", GREEDY)
def test_the_greedy_schedule_continues_from_states_of_transformers_and_its_own(kwargs: dict[str, Any]) -> None:
    straight = theirs.GreedyLR(an_optimizer(), **kwargs)
    other = theirs.GreedyLR(an_optimizer(), **kwargs)
    first = metrics()[:90]
    for metric in first:
        straight.step(metric)
        other.step(metric)
    mine = GreedyLR(an_optimizer(), **{**kwargs, "patience": 40})
    mine.load_state_dict(other.state_dict())
    again = GreedyLR(an_optimizer(), **kwargs)
    again.load_state_dict(mine.state_dict())
    back = theirs.GreedyLR(an_optimizer(), **kwargs)
    back.load_state_dict(mine.state_dict())

    for metric in metrics()[90:]:
        for item in (straight, mine, again, back):
            item.step(metric)
        assert straight.get_last_lr() == mine.get_last_lr() == again.get_last_lr() == back.get_last_lr()


@pytest.mark.filterwarnings("ignore:Both num_training_steps")
@pytest.mark.parametrize("name", [name for name in SchedulerType if name not in ("reduce_lr_on_plateau", "greedy")])
def test_a_schedule_continues_from_a_state_of_transformers(name: str) -> None:
    kwargs = {item: values[-1] for item, values in GRID.get(name, {}).items()}
    if "min_lr" in kwargs:
        kwargs.pop("min_lr")
    straight = rates(ours.get_scheduler, name, 10, kwargs)
    reference = theirs.get_scheduler(name, an_optimizer(), 10, STEPS - 20, kwargs)
    for _ in range(60):
        reference.optimizer.step()
        reference.step()
    optimizer = an_optimizer()
    schedule = ours.get_scheduler(name, optimizer, 10, STEPS - 20, kwargs)
    schedule.load_state_dict(reference.state_dict())
    optimizer.load_state_dict(reference.optimizer.state_dict())

    result = []
    for _ in range(60, STEPS):
        result.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()

    assert result == straight[60:]


def test_schedules_that_follow_a_metric_are_detected() -> None:
    following = {name for name in SchedulerType if ours.follows_a_metric(_any(name))}

    assert following == {"reduce_lr_on_plateau", "greedy"}
    assert isinstance(_any("reduce_lr_on_plateau"), ReduceLROnPlateau)


def _any(name: str) -> Any:
    kwargs = {"cosine_with_min_lr": {"min_lr": 0}, "cosine_warmup_with_min_lr": {"min_lr": 0}}
    return ours.get_scheduler(
        name, an_optimizer(), 0, 10, {"num_decay_steps": 3} if name == "warmup_stable_decay" else kwargs.get(name)
    )


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("linear", {"min_lr": 3}, "do not fit linear: .*min_lr"),
        ("greedy", {"patients": 3}, "do not fit greedy: .*patients.*patience"),
        ("constant", {"num_cycles": 1}, "do not fit constant"),
        ("reduce_lr_on_plateau", {"factr": 1}, "factor"),
        ("cosine_with_min_lr", {}, "One of min_lr or min_lr_rate"),
        ("cosine_with_min_lr", {"min_lr": 1, "min_lr_rate": 1}, "Only one of"),
        ("polynomial", {"lr_end": 1}, "smaller than initial"),
        ("warmup_stable_decay", {"num_decay_steps": 1, "decay_type": "log"}, "Unknown decay type: log"),
        ("warmup_stable_decay", {}, "num_decay_steps"),
        ("cosin", {}, "did you mean 'cosine'"),
    ],
)
def test_schedule_arguments_that_do_not_fit_are_refused_by_name(
    name: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ours.get_scheduler(name, an_optimizer(), 1, 10, kwargs)


def test_a_schedule_without_a_required_number_of_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="requires `num_training_steps`"):
        ours.get_scheduler("linear", an_optimizer(), 3)
    with pytest.raises(ValueError, match="requires `num_warmup_steps`"):
        ours.get_scheduler("constant_with_warmup", an_optimizer())


def test_num_stable_steps_with_num_training_steps_gives_a_warning() -> None:
    with warnings.catch_warnings(record=True) as report:
        warnings.simplefilter("always")
        ours.get_wsd_schedule(an_optimizer(), 1, 2, num_training_steps=10, num_stable_steps=3)
    assert "num_stable_steps will be used" in str(report[0].message)
