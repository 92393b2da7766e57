"""An optimizer as the arguments ask for it, and what a maker returns: a class and its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from footplate.contract.arguments import TrainingArguments

Made = tuple[type[Optimizer], dict[str, Any]]
_OWNED = {
    "lr": "learning_rate",
    "betas": "adam_beta1 and adam_beta2",
    "weight_decay": "weight_decay",
    "params": "a subclass's create_optimizer",
}
"""Arguments of optimizers that have a training argument of their own."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the arguments say of an optimizer."""

    args: TrainingArguments
    model: nn.Module | None
    options: dict[str, str]
    """`optim_args`, read."""

    @property
    def name(self) -> str:
        return str(self.args.optim)

    @property
    def rate(self) -> dict[str, Any]:
        return {"lr": self.args.learning_rate}

    @property
    def adam(self) -> dict[str, Any]:
        args = self.args
        return {**self.rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}

    def with_options(self, made: type[Optimizer], kwargs: dict[str, Any]) -> Made:
        """The further arguments of the class that `optim_args` gives, as the kinds that it wants."""
        return made, {**kwargs, **_typed(self.options, made, taken=kwargs)}


def _typed(options: Mapping[str, str], made: type[Optimizer], *, taken: Mapping[str, Any]) -> dict[str, Any]:
    takes = inspect.signature(made).parameters
    free = [name for name in takes if name not in _OWNED and name not in taken]
    found = {}
    for name, text in options.items():
        if name in _OWNED or name in taken:
            instead = _OWNED.get(name, f"adam_epsilon for {name}" if name == "eps" else "nothing: it is set already")
            raise ValueError(f"optim_args has {name}, which is said elsewhere: use {instead}")
        if name not in takes:
            raise ValueError(f"optim_args has {name}, and {made.__name__} takes: {', '.join(free)}")
        found[name] = _value(name, text, takes[name].default)
    return found


def _value(name: str, text: str, default: Any) -> Any:
    """As the kind of the default; where that is None, whatever it looks like."""
    low = text.lower()
    if low == "none":
        return None
    truth = {"true": True, "yes": True, "false": False, "no": False}
    if isinstance(default, bool) or (default is None and low in truth):
        truth |= {"1": True, "0": False}
        if low not in truth:
            raise ValueError(f"optim_args has {name}={text}, which is neither true nor false")
        return truth[low]
    try:
        # torch writes 0 where it means 0.0.
        return int(text) if isinstance(default, int) and text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise ValueError(f"optim_args has {name}={text}, and a number is needed") from None
