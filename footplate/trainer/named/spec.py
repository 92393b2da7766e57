"""What is said of one of several optimizers, and what its names stand for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from footplate.contract.errors import UnknownComponent
from footplate.trainer import optimizers, schedules
from footplate.trainer.names import SchedulerType


@dataclass(frozen=True)
class NamedOptimizer:
    """One of several optimizers, with parameters of its own."""

    id: str
    """Its name in logs and checkpoints."""
    params: Sequence[str]
    """Regular expressions, searched in parameter names. Every trainable parameter belongs to exactly one optimizer."""
    use: str | Callable[..., Optimizer] = "adamw"
    """A class of torch.optim by its name, one of ours, or anything that makes an optimizer of parameters."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """What it is made with, such as {"lr": 1e-3}."""
    loss: str | Callable[[nn.Module], Tensor] | None = None
    """A key of the model's output, a method of the model, or a function of the model; None is the main loss."""
    schedule: str | Callable[..., Any] | None = None
    """One of the reference's names, a class of torch.optim.lr_scheduler, or a function of the optimizer. One that takes
    `num_training_steps` is told how many steps its optimizer makes, unless the arguments say it."""
    schedule_args: Mapping[str, Any] = field(default_factory=dict)
    per: Literal["step", "epoch"] = "step"
    """When its schedule moves: after each of its steps, or of the epochs."""
    every: int = 1
    """Steps every so many optimizer steps of the run."""
    clip: float | None = None
    """Largest gradient norm of its parameters; None is training's max_grad_norm, 0 leaves them alone."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"optimizer {self.id!r} steps every {self.every} steps: use 1 or more")
        if self.per not in ("step", "epoch"):
            raise ValueError(f"the schedule of optimizer {self.id!r} moves per {self.per!r}: use step or epoch")


def parted(model: nn.Module, specs: Sequence[NamedOptimizer]) -> list[list[nn.Parameter]]:
    """Each optimizer's parameters. All that is wrong with the patterns is told at once."""
    problems = [f"two optimizers are called {name!r}" for name in _twice(spec.id for spec in specs)]
    parts: list[list[nn.Parameter]] = [[] for _ in specs]
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    for name, value in trainable.items():
        found = [at for at, spec in enumerate(specs) if any(re.search(pattern, name) for pattern in spec.params)]
        if len(found) == 1:
            parts[found[0]].append(value)
        elif found:
            problems.append(f"{name} belongs to {' and '.join(specs[at].id for at in found)}")
        else:
            problems.append(f"{name} belongs to none")
    problems += [f"{spec.id} has no parameter" for spec, part in zip(specs, parts, strict=True) if not part]
    problems += [
        f"{pattern!r} of {spec.id} matches none"
        for spec in specs
        for pattern in spec.params
        if not any(re.search(pattern, name) for name in trainable)
    ]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise ValueError(
            f"every trainable parameter belongs to exactly one optimizer: {'; '.join(problems[:8])}{more}. "
            "Patterns are searched in the names of model.named_parameters()"
        )
    return parts


def _twice(names: Iterable[str]) -> list[str]:
    seen = list(names)
    return sorted({name for name in seen if seen.count(name) > 1})


def maker(spec: NamedOptimizer) -> Callable[..., Optimizer]:
    if not isinstance(spec.use, str):
        return spec.use
    ours = {each.__name__: each for each in (optimizers.Adafactor, optimizers.Lion, optimizers.AdamWScheduleFree)}
    torchs = {name: each for name, each in vars(torch.optim).items() if isinstance(each, type) and name != "Optimizer"}
    known: dict[str, Any] = {name.lower(): each for name, each in {**torchs, **ours}.items()}
    known |= {"adamw_torch": torch.optim.AdamW, "adamw_torch_fused": partial(torch.optim.AdamW, fused=True)}
    if spec.use.lower() not in known:
        raise UnknownComponent("optimizer", spec.use, known)
    return known[spec.use.lower()]  # type: ignore[no-any-return]


def make_schedule(spec: NamedOptimizer, optimizer: Optimizer, num_training_steps: int) -> Any:
    name = str(spec.schedule)
    if callable(spec.schedule):
        made = spec.schedule(optimizer, **length_of(spec, num_training_steps), **spec.schedule_args)
    elif name in set(SchedulerType):
        args, steps = dict(spec.schedule_args), num_training_steps // spec.every
        made = schedules.get_scheduler(name, optimizer, args.pop("num_warmup_steps", 0), steps, args)
    else:
        kind = getattr(lr_scheduler, name, None)
        if kind is None:
            known = [*SchedulerType, *(each for each in vars(lr_scheduler) if each.endswith("LR"))]
            raise UnknownComponent("schedule", name, known)
        made = kind(optimizer, **spec.schedule_args)
    if schedules.follows_a_metric(made):
        raise ValueError(f"the schedule of optimizer {spec.id!r} follows a metric: use one that follows steps")
    return made


def length_of(spec: NamedOptimizer, num_training_steps: int) -> dict[str, int]:
    """What a function of the optimizer has to know of the run, where it wants to know it."""
    takes: Mapping[str, Any] = inspect.signature(spec.schedule).parameters if callable(spec.schedule) else {}
    if "num_training_steps" not in takes or "num_training_steps" in spec.schedule_args:
        return {}
    if spec.per == "epoch":
        raise ValueError(
            f"the schedule of optimizer {spec.id!r} moves with the epochs, and falls over the whole run: give its "
            "num_training_steps, in epochs"
        )
    return {"num_training_steps": num_training_steps // spec.every}
