"""Which optimizer a name makes, and which parameters decay."""

from __future__ import annotations

import torch
from torch import nn

from contract.arguments import TrainingArguments
from worker.trainer.optimizers import decay_parameter_names, optimizer_class, parameter_groups


def test_biases_and_norms_do_not_decay_and_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    model[2].weight.requires_grad = False

    names = decay_parameter_names(model)
    decay, rest = parameter_groups(model, names, 0.1)

    assert names == ["0.weight", "2.weight"]
    assert (len(decay["params"]), decay["weight_decay"]) == (1, 0.1)
    assert (len(rest["params"]), rest["weight_decay"]) == (4, 0.0)


def test_the_named_optimizer_gets_its_arguments() -> None:
    made, kwargs = optimizer_class(TrainingArguments("out", adam_beta1=0.8))

    assert made is torch.optim.AdamW
    assert kwargs == {"lr": 5e-5, "betas": (0.8, 0.999), "eps": 1e-8, "fused": True}
    assert optimizer_class(TrainingArguments("out", optim="sgd"))[0] is torch.optim.SGD
