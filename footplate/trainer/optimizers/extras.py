"""Optimizers from further packages, imported when one is named. A missing package raises an error with the extra."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from torch.optim import Optimizer

from footplate.trainer.optimizers.request import ClassAndArguments, OptimizerRequest


def bitsandbytes(request: OptimizerRequest) -> ClassAndArguments:
    """8-bit optimizers need a quarter of the memory; paged ones move their state to the host if the GPU is full."""
    name, args = request.name, request.args
    betas = (args.adam_beta1, args.adam_beta2)
    kwargs: dict[str, Any] = {**request.rate, "optim_bits": 8 if "8bit" in name else 32}
    if "rmsprop" not in name:
        kwargs["is_paged"] = name.startswith("paged")
    if "ademamix" in name:
        third = float(request.options.get("beta3", 0.9999))
        alpha = float(request.options.get("alpha", 5.0))
        kwargs |= {"betas": (*betas, third), "alpha": alpha, "eps": args.adam_epsilon}
        options = {key: value for key, value in request.options.items() if key not in ("beta3", "alpha")}
        return _with(request, _class("bitsandbytes.optim", "AdEMAMix", "bitsandbytes", name), kwargs, options)
    if "adam" in name:
        class_name, kwargs = "AdamW", {**kwargs, **request.adam}
    elif "lion" in name:
        class_name, kwargs = "Lion", {**kwargs, "betas": betas}
    else:
        class_name = "RMSprop"
    return _with(request, _class("bitsandbytes.optim", class_name, "bitsandbytes", name), kwargs, request.options)


def torchao(request: OptimizerRequest) -> ClassAndArguments:
    """AdamW with its state in 4 or 8 bits, in plain torch."""
    optimizer = _class("torchao.optim", "AdamW4bit" if "4bit" in request.name else "AdamW8bit", "torchao", request.name)
    return _with(request, optimizer, request.adam, request.options)


def _with(
    request: OptimizerRequest, optimizer: type[Optimizer], kwargs: dict[str, Any], options: dict[str, str]
) -> ClassAndArguments:
    return replace(request, options=options).with_options(optimizer, kwargs)


def _class(module: str, name: str, extra: str, optim: str) -> type[Optimizer]:
    try:
        optimizer: type[Optimizer] = getattr(import_module(module), name)
    except ImportError as error:
        raise ImportError(f"optim {optim} needs the extra {extra}: pip install 'footplate[{extra}]'") from error
    return optimizer
