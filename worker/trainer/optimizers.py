"""The optimizer that the arguments name, over two groups of parameters: with weight decay and without."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from contract.arguments import TrainingArguments

_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Weights, but not biases and not norms: pulling those to zero helps nobody."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
        if not isinstance(module, nn.LayerNorm) and not _NO_DECAY.search(f"{prefix}.{name}".lower())
    ]


def parameter_groups(model: nn.Module, decay: list[str], weight_decay: float) -> list[dict[str, Any]]:
    names = set(decay)
    trainable = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    return [
        {"params": [value for name, value in trainable if name in names], "weight_decay": weight_decay},
        {"params": [value for name, value in trainable if name not in names], "weight_decay": 0.0},
    ]


def optimizer_class(args: TrainingArguments) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class and its arguments, without parameters."""
    rate = {"lr": args.learning_rate}
    adam = {**rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    known: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
        "adamw_torch": (torch.optim.AdamW, adam),
        "adamw_torch_fused": (torch.optim.AdamW, {**adam, "fused": True}),
        "sgd": (torch.optim.SGD, rate),
        "adagrad": (torch.optim.Adagrad, rate),
        "rmsprop": (torch.optim.RMSprop, rate),
    }
    if args.optim not in known:
        raise ValueError(f"no optimizer named {args.optim!r}. Known: {', '.join(known)}")
    return known[args.optim]
