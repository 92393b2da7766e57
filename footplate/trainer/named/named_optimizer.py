"""NamedOptimizer, the settings of one of several optimizers, and functions that make its optimizer and schedule."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from footplate.contract.errors import UnknownComponent, listing
from footplate.trainer import optimizers, schedules
from footplate.trainer.names import SchedulerType


@dataclass(frozen=True)
class NamedOptimizer:
    """One of several optimizers, each with its own parameters."""

    id: str
    """The name in logs and checkpoints."""
    params: Sequence[str]
    """Regular expressions, searched in parameter names. Each trainable parameter must match exactly one optimizer."""
    use: str | Callable[..., Optimizer] = "adamw"
    """The name of a class in torch.optim, the name of one of ours, or a function that makes an optimizer."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the optimizer, such as {"lr": 1e-3}."""
    loss: str | Callable[[nn.Module], Tensor] | None = None
    """A key of the model's output, a method of the model, or a function of the model; None is the main loss."""
    schedule: str | Callable[..., Any] | None = None
    """A name that Hugging Face uses, a class of torch.optim.lr_scheduler, or a function of the optimizer. A function
    that takes `num_training_steps` receives the number of this optimizer's steps, unless the arguments set it."""
    schedule_args: Mapping[str, Any] = field(default_factory=dict)
    per: Literal["step", "epoch"] = "step"
    """The moment at which the schedule advances: after each step of this optimizer, or after each epoch."""
    every: int = 1
    """The interval of this optimizer's steps, in optimizer steps of the run."""
    clip: float | None = None
    """The largest gradient norm of this optimizer's parameters. None uses max_grad_norm, and 0 does not clip."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"optimizer {self.id!r} steps every {self.every} steps: use 1 or more")
        if self.per not in ("step", "epoch"):
            raise ValueError(f"the schedule of optimizer {self.id!r} moves per {self.per!r}: use step or epoch")


def parameters_of(model: nn.Module, specs: Sequence[NamedOptimizer]) -> list[list[nn.Parameter]]:
    """Returns the parameters of each optimizer. One error lists all problems with the patterns that select them."""
    counts = Counter(spec.id for spec in specs)
    problems = [f"two optimizers are called {name!r}" for name in sorted(counts) if counts[name] > 1]
    owned: list[list[nn.Parameter]] = [[] for _ in specs]
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    for name, value in trainable.items():
        owners = [at for at, spec in enumerate(specs) if any(re.search(pattern, name) for pattern in spec.params)]
        if len(owners) == 1:
            owned[owners[0]].append(value)
        elif owners:
            problems.append(f"{name} belongs to {' and '.join(specs[at].id for at in owners)}")
        else:
            problems.append(f"{name} belongs to none")
    problems += [f"{spec.id} has no parameter" for spec, parameters in zip(specs, owned, strict=True) if not parameters]
    problems += [
        f"{pattern!r} of {spec.id} matches none"
        for spec in specs
        for pattern in spec.params
        if not any(re.search(pattern, name) for name in trainable)
    ]
    if problems:
        raise ValueError(
            f"every trainable parameter must belong to exactly one optimizer: {listing(problems, 8, '; ')}. "
            "Patterns are searched in the names of model.named_parameters()"
        )
    return owned


def maker(spec: NamedOptimizer) -> Callable[..., Optimizer]:
    if not isinstance(spec.use, str):
        return spec.use
    our_classes = (optimizers.Adafactor, optimizers.Lion, optimizers.AdamWScheduleFree)
    torch_classes = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and kind is not Optimizer]
    makers: dict[str, Any] = {kind.__name__.lower(): kind for kind in (*torch_classes, *our_classes)}
    makers |= {"adamw_torch": torch.optim.AdamW, "adamw_torch_fused": partial(torch.optim.AdamW, fused=True)}
    if spec.use.lower() not in makers:
        raise UnknownComponent("optimizer", spec.use, makers)
    return makers[spec.use.lower()]  # type: ignore[no-any-return]


def make_schedule(spec: NamedOptimizer, optimizer: Optimizer, num_training_steps: int) -> Any:
    name = str(spec.schedule)
    length = length_of(spec, num_training_steps)
    if callable(spec.schedule):
        schedule = spec.schedule(optimizer, **length, **spec.schedule_args)
    elif name in set(SchedulerType):
        args = dict(spec.schedule_args)
        steps = length.get("num_training_steps", num_training_steps // spec.every)
        schedule = schedules.get_scheduler(name, optimizer, args.pop("num_warmup_steps", 0), steps, args)
    else:
        kind = getattr(lr_scheduler, name, None)
        if kind is None:
            names = [*SchedulerType, *(class_name for class_name in vars(lr_scheduler) if class_name.endswith("LR"))]
            raise UnknownComponent("schedule", name, names)
        schedule = kind(optimizer, **spec.schedule_args)
    if schedules.follows_a_metric(schedule):
        raise ValueError(f"the schedule of optimizer {spec.id!r} follows a metric: use one that follows steps")
    return schedule


def length_of(spec: NamedOptimizer, num_training_steps: int) -> dict[str, int]:
    """Returns the schedule's `num_training_steps` if its function takes one and the arguments do not set it."""
    function = spec.schedule
    if not callable(function) and function in set(SchedulerType):
        function = schedules.TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(function)]
    parameters: Mapping[str, Any] = inspect.signature(function).parameters if callable(function) else {}
    if "num_training_steps" not in parameters or "num_training_steps" in spec.schedule_args:
        return {}
    if spec.per == "epoch":
        raise ValueError(
            f"the schedule of optimizer {spec.id!r} moves by epoch, and needs the length of the run: give "
            "num_training_steps, in epochs"
        )
    return {"num_training_steps": num_training_steps // spec.every}
