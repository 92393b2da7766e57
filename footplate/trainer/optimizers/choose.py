"""Turns the name of an optimizer into its class and arguments. An unknown or unsupported name is refused."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from footplate.contract.arguments import TrainingArguments
from footplate.contract.arguments.libraries import OF_BITSANDBYTES, OF_TORCHAO
from footplate.contract.arguments.not_supported import CHOICES_NOT_YET
from footplate.contract.errors import NotAvailableYet, UnknownComponent
from footplate.trainer.names import OptimizerNames
from footplate.trainer.optimizers import extras
from footplate.trainer.optimizers.adafactor import Adafactor
from footplate.trainer.optimizers.lion import Lion
from footplate.trainer.optimizers.request import ClassAndArguments, OptimizerRequest
from footplate.trainer.optimizers.schedule_free import AdamWScheduleFree, SGDScheduleFree


def optimizer_class(args: TrainingArguments, model: nn.Module | None = None) -> ClassAndArguments:
    """Returns the optimizer's class and its arguments, without parameters."""
    name = str(args.optim)
    if name in _MAKERS:
        return _MAKERS[name](OptimizerRequest(args, model, parsed(getattr(args, "optim_args", None))))
    declined = CHOICES_NOT_YET["optim"]
    if name in declined:
        raise NotAvailableYet(f"optim {name} is not available", hint=declined[name])
    raise UnknownComponent("optimizer", name, _MAKERS)


def parsed(optim_args: str | None) -> dict[str, str]:
    """Returns `"momentum=0.9, nesterov=true"` as a dict."""
    options = {}
    for part in (optim_args or "").replace(" ", "").split(","):
        if not part:
            continue
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise ValueError(f"optim_args has {part!r}: write name=value, with commas between")
        options[name] = value
    return options


def _adamw(request: OptimizerRequest) -> ClassAndArguments:
    fused = {"fused": True} if request.name == OptimizerNames.ADAMW_TORCH_FUSED else {}
    return request.with_options(torch.optim.AdamW, {**request.adam, **fused})


def _adafactor(request: OptimizerRequest) -> ClassAndArguments:
    return request.with_options(Adafactor, {**request.rate, "scale_parameter": False, "relative_step": False})


def _lion(request: OptimizerRequest) -> ClassAndArguments:
    betas = {"betas": (request.args.adam_beta1, request.args.adam_beta2)}
    return request.with_options(Lion, {**request.rate, **betas})


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


def _of_torch(made: type[Optimizer]) -> Callable[[OptimizerRequest], ClassAndArguments]:
    return lambda request: request.with_options(made, request.rate)


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
    **dict.fromkeys(OF_BITSANDBYTES, lambda request: extras.bitsandbytes(request)),
    **dict.fromkeys(OF_TORCHAO, lambda request: extras.torchao(request)),
}
