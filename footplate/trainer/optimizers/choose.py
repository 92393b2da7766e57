"""Returns the class and the arguments of the optimizer that the argument `optim` names.

Packages such as bitsandbytes are imported only for their own optimizers. If one is missing, the error names the extra.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from footplate.contract.arguments import TrainingArguments
from footplate.contract.arguments.libraries import OF_BITSANDBYTES, OF_TORCHAO
from footplate.contract.arguments.not_supported import CHOICES_NOT_YET
from footplate.contract.errors import NotAvailableYet, UnknownComponent
from footplate.trainer.names import OptimizerNames
from footplate.trainer.optimizers.adafactor import Adafactor
from footplate.trainer.optimizers.lion import Lion
from footplate.trainer.optimizers.schedule_free import AdamWScheduleFree, SGDScheduleFree

ClassAndArguments = tuple[type[Optimizer], dict[str, Any]]
_OWNED = {
    "lr": "learning_rate",
    "betas": "adam_beta1 and adam_beta2",
    "weight_decay": "weight_decay",
    "params": "a subclass's create_optimizer",
}
"""The options that `optim_args` must not set, each with the training argument that sets it."""


def optimizer_class(args: TrainingArguments, model: nn.Module | None = None) -> ClassAndArguments:
    """Returns the class of the optimizer that `optim` names, and its arguments except for the model's parameters."""
    name = str(args.optim)
    if name in _MAKERS:
        return _MAKERS[name](OptimizerRequest(args, parsed(getattr(args, "optim_args", None))))
    declined = CHOICES_NOT_YET["optim"]
    if name in declined:
        raise NotAvailableYet(f"optim {name} is not available", hint=declined[name])
    raise UnknownComponent("optimizer", name, _MAKERS)


def parsed(optim_args: str | None) -> dict[str, str]:
    """Returns `"momentum=0.9, nesterov=true"` as a dict."""
    options = {}
    for option in (optim_args or "").replace(" ", "").split(","):
        if not option:
            continue
        name, equals, value = option.partition("=")
        if not (name and equals and value):
            raise ValueError(f"optim_args has {option!r}: write name=value, with commas between")
        options[name] = value
    return options


@dataclass(frozen=True, slots=True)
class OptimizerRequest:
    """The training arguments and the parsed `optim_args`, from which an optimizer's arguments are made."""

    args: TrainingArguments
    options: dict[str, str]

    @property
    def name(self) -> str:
        return str(self.args.optim)

    @property
    def rate(self) -> dict[str, Any]:
        return {"lr": self.args.learning_rate}

    @property
    def betas(self) -> tuple[float, float]:
        return self.args.adam_beta1, self.args.adam_beta2

    @property
    def adam(self) -> dict[str, Any]:
        return {**self.rate, "betas": self.betas, "eps": self.args.adam_epsilon}

    def with_options(self, optimizer: type[Optimizer], kwargs: dict[str, Any]) -> ClassAndArguments:
        """Adds `optim_args` to the arguments, converted to the types that the class expects."""
        parameters = inspect.signature(optimizer).parameters
        free = [name for name in parameters if name not in _OWNED and name not in kwargs]
        typed = {}
        for name, text in self.options.items():
            if name in _OWNED or name in kwargs:
                instead = _OWNED.get(name, "adam_epsilon" if name == "eps" else None)
                hint = f"use {instead}" if instead else "leave it out"
                raise ValueError(f"optim_args has {name}, which is set elsewhere: {hint}")
            if name not in parameters:
                raise ValueError(f"optim_args has {name}, but {optimizer.__name__} takes only: {', '.join(free)}")
            typed[name] = _value(name, text, parameters[name].default)
        return optimizer, {**kwargs, **typed}


def _value(name: str, text: str, default: Any) -> Any:
    """Converts text to the type of the default. If the default is None, the text decides the type."""
    low = text.lower()
    if low == "none":
        return None
    booleans = {"true": True, "yes": True, "false": False, "no": False}
    if isinstance(default, bool) or (default is None and low in booleans):
        booleans |= {"1": True, "0": False}
        if low not in booleans:
            raise ValueError(f"optim_args has {name}={text}, which is neither true nor false")
        return booleans[low]
    try:
        # torch writes a default of 0 where a float is meant.
        return int(text) if isinstance(default, int) and text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise ValueError(f"optim_args has {name}={text}, which is not a number") from None


def _adamw(request: OptimizerRequest) -> ClassAndArguments:
    fused = {"fused": True} if request.name == OptimizerNames.ADAMW_TORCH_FUSED else {}
    return request.with_options(torch.optim.AdamW, {**request.adam, **fused})


def _adafactor(request: OptimizerRequest) -> ClassAndArguments:
    return request.with_options(Adafactor, {**request.rate, "scale_parameter": False, "relative_step": False})


def _lion(request: OptimizerRequest) -> ClassAndArguments:
    return request.with_options(Lion, {**request.rate, "betas": request.betas})


def _schedule_free(request: OptimizerRequest) -> ClassAndArguments:
    if 0 < request.args.warmup_steps < 1:
        raise ValueError(
            f"warmup_steps {request.args.warmup_steps:g} is a share of a schedule, and {request.name} has none: "
            "give a whole number of steps"
        )
    warmup = {"weight_decay": request.args.weight_decay, "warmup_steps": int(request.args.warmup_steps)}
    if request.name == OptimizerNames.SCHEDULE_FREE_ADAMW:
        return request.with_options(AdamWScheduleFree, {**request.adam, **warmup})
    return request.with_options(SGDScheduleFree, {**request.rate, **warmup})


def _of_torch(optimizer: type[Optimizer]) -> Callable[[OptimizerRequest], ClassAndArguments]:
    return lambda request: request.with_options(optimizer, request.rate)


def _bitsandbytes(request: OptimizerRequest) -> ClassAndArguments:
    """Returns an optimizer of bitsandbytes. 8-bit states need a quarter of the memory.

    Paged optimizers move their state to the host if the GPU is full.
    """
    name = request.name
    kwargs: dict[str, Any] = {**request.rate, "optim_bits": 8 if "8bit" in name else 32}
    if "rmsprop" in name:
        class_name = "RMSprop"
    else:
        kwargs["is_paged"] = name.startswith("paged")
        class_name = "AdEMAMix" if "ademamix" in name else "AdamW" if "adam" in name else "Lion"
        kwargs |= {"betas": request.betas} if class_name == "Lion" else request.adam
    if class_name == "AdEMAMix":
        beta3, alpha = float(request.options.pop("beta3", 0.9999)), float(request.options.pop("alpha", 5.0))
        kwargs |= {"betas": (*request.betas, beta3), "alpha": alpha}
    return request.with_options(_class("bitsandbytes.optim", class_name, "bitsandbytes", name), kwargs)


def _torchao(request: OptimizerRequest) -> ClassAndArguments:
    """Returns torchao's AdamW, which stores its state in 4 or 8 bits."""
    class_name = "AdamW4bit" if "4bit" in request.name else "AdamW8bit"
    return request.with_options(_class("torchao.optim", class_name, "torchao", request.name), request.adam)


def _class(module: str, name: str, extra: str, optim: str) -> type[Optimizer]:
    try:
        optimizer: type[Optimizer] = getattr(import_module(module), name)
    except ImportError as error:
        raise ImportError(f"optim {optim} needs the extra {extra}: pip install 'footplate[{extra}]'") from error
    return optimizer


_MAKERS: dict[str, Callable[[OptimizerRequest], ClassAndArguments]] = {
    "adamw_torch": _adamw,
    "adamw_torch_fused": _adamw,
    "adafactor": _adafactor,
    "sgd": _of_torch(torch.optim.SGD),
    "adagrad": _of_torch(torch.optim.Adagrad),
    "rmsprop": _of_torch(torch.optim.RMSprop),
    "lion_32bit": _lion,
    "schedule_free_adamw": _schedule_free,
    "schedule_free_sgd": _schedule_free,
    **dict.fromkeys(OF_BITSANDBYTES, _bitsandbytes),
    **dict.fromkeys(OF_TORCHAO, _torchao),
}
