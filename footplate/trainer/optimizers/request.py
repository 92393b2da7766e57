"""The request for an optimizer, and the result of a maker: a class and its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from footplate.contract.arguments import TrainingArguments

ClassAndArguments = tuple[type[Optimizer], dict[str, Any]]
_OWNED = {
    "lr": "learning_rate",
    "betas": "adam_beta1 and adam_beta2",
    "weight_decay": "weight_decay",
    "params": "a subclass's create_optimizer",
}
"""Arguments of optimizers that have their own training argument."""


@dataclass(frozen=True, slots=True)
class OptimizerRequest:
    """The request for an optimizer: the arguments, the model and `optim_args`."""

    args: TrainingArguments
    model: nn.Module | None
    options: dict[str, str]
    """The parsed `optim_args`."""

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

    def with_options(self, optimizer: type[Optimizer], kwargs: dict[str, Any]) -> ClassAndArguments:
        """Adds `optim_args` to the arguments, converted to the types that the class expects."""
        return optimizer, {**kwargs, **_typed(self.options, optimizer, taken=kwargs)}


def _typed(options: Mapping[str, str], optimizer: type[Optimizer], *, taken: Mapping[str, Any]) -> dict[str, Any]:
    takes = inspect.signature(optimizer).parameters
    free = [name for name in takes if name not in _OWNED and name not in taken]
    typed = {}
    for name, text in options.items():
        if name in _OWNED or name in taken:
            instead = _OWNED.get(name, f"adam_epsilon for {name}" if name == "eps" else "nothing: it is set already")
            raise ValueError(f"optim_args has {name}, which is set elsewhere: use {instead}")
        if name not in takes:
            raise ValueError(f"optim_args has {name}, and {optimizer.__name__} takes: {', '.join(free)}")
        typed[name] = _value(name, text, takes[name].default)
    return typed


def _value(name: str, text: str, default: Any) -> Any:
    """Converts text to the type of the default. If the default is None, the text decides the type."""
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
        # torch writes a default of 0 where a float is meant.
        return int(text) if isinstance(default, int) and text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise ValueError(f"optim_args has {name}={text}, and a number is needed") from None
