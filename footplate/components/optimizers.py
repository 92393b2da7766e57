"""Optimizers that a spec may name in `optimizers`, each with its own parameters: those of torch, and the Trainer's."""

from __future__ import annotations

from typing import Annotated

from torch import optim

from footplate.components.component import component
from footplate.trainer import optimizers

Rate = Annotated[float, "Learning rate: the size of a step"]
Betas = Annotated[tuple[float, float], "Decay rates of the running means of gradients and of their squares"]
Eps = Annotated[float, "A small number that is added to denominators"]
Decay = Annotated[float, "Weight decay: how much each step shrinks the weights, relative to the learning rate"]
Momentum = Annotated[float, "The share of the previous step that is added to the next"]
Nesterov = Annotated[bool, "Use Nesterov's momentum, which looks one step ahead"]
Amsgrad = Annotated[bool, "Divide by the largest second moment so far"]
Decoupled = Annotated[bool, "Keep weight decay separate from the gradients, as AdamW does"]
MeanOfSquares = Annotated[float, "Decay rate of the running mean of squared gradients"]
Warmup = Annotated[int, "Steps over which the rate rises"]

adamw = component(
    optim.AdamW,
    "AdamW: Adam with weight decay that is separate from the gradients.",
    lr=Rate, betas=Betas, eps=Eps, weight_decay=Decay, amsgrad=Amsgrad,
)  # fmt: skip

adam = component(
    optim.Adam,
    "Adam: scales each weight's step by running means of its gradient and of the gradient's square.",
    lr=Rate, betas=Betas, eps=Eps, weight_decay=Decay, amsgrad=Amsgrad,
)  # fmt: skip

adamax = component(
    optim.Adamax,
    "Adamax: Adam with the largest gradient instead of the mean of squares.",
    lr=Rate, betas=Betas, eps=Eps, weight_decay=Decay,
)  # fmt: skip

nadam = component(
    optim.NAdam,
    "NAdam, which is Adam with Nesterov's momentum.",
    lr=Rate, betas=Betas, eps=Eps, weight_decay=Decay,
    momentum_decay=Annotated[float, "How fast the momentum rises to its final value with the steps"],
    decoupled_weight_decay=Decoupled,
)  # fmt: skip

radam = component(
    optim.RAdam,
    "RAdam: Adam that warms up by itself while its second moments are uncertain.",
    lr=Rate, betas=Betas, eps=Eps, weight_decay=Decay, decoupled_weight_decay=Decoupled,
)  # fmt: skip

sgd = component(
    optim.SGD,
    "Stochastic gradient descent, with optional momentum.",
    lr=Rate, momentum=Momentum,
    dampening=Annotated[float, "The share of the newest gradient that the momentum leaves out"],
    weight_decay=Decay, nesterov=Nesterov,
)  # fmt: skip

rmsprop = component(
    optim.RMSprop,
    "RMSprop: divides the gradient by the root of the running mean of its square.",
    lr=Rate, alpha=MeanOfSquares, eps=Eps, weight_decay=Decay, momentum=Momentum,
    centered=Annotated[bool, "Subtract the mean gradient first"],
)  # fmt: skip

adagrad = component(
    optim.Adagrad,
    "Adagrad: divides the gradient by the root of the sum of all its squares so far.",
    lr=Rate, lr_decay=Annotated[float, "The speed at which the rate falls with the steps"], weight_decay=Decay,
    initial_accumulator_value=Annotated[float, "The initial value of the sum of squares"], eps=Eps,
)  # fmt: skip

adadelta = component(
    optim.Adadelta,
    "Adadelta: scales steps by the size of earlier steps, so that the rate matters little.",
    lr=Rate, rho=MeanOfSquares, eps=Eps, weight_decay=Decay,
)  # fmt: skip

adafactor = component(
    optimizers.Adafactor,
    "Adafactor: Adam with less memory, because second moments are stored by row and column.",
    defaults={"lr": 1e-3, "scale_parameter": False, "relative_step": False},
    lr=Annotated[float | None, "Learning rate; null computes it from the step, with relative_step"],
    eps=Annotated[
        tuple[float, float],
        "The number that is added to squared gradients, and the least size of weights that scale_parameter assumes",
    ],
    clip_threshold=Annotated[float, "The largest root mean square of a step"],
    decay_rate=Annotated[float, "Exponent of the second moments' decay, which is 1 − step ** decay_rate"],
    beta1=Annotated[float | None, "Decay rate of the running mean of gradients; null keeps no mean"],
    weight_decay=Decay,
    scale_parameter=Annotated[bool, "Scale steps by the size of the weights"],
    relative_step=Annotated[bool, "Compute the rate from the step; needs lr null"],
    warmup_init=Annotated[bool, "Begin with a small rate that grows with the steps; needs relative_step"],
)

lion = component(
    optimizers.Lion,
    "Lion: steps by the sign of a momentum. It needs a rate about ten times smaller than AdamW's.",
    lr=Rate,
    betas=Annotated[tuple[float, float], "The weight of the momentum in a step, and the decay rate of the momentum"],
    weight_decay=Decay,
)

muon = component(
    optim.Muon,
    "Muon: orthogonal steps for matrices. Vectors and embeddings need another optimizer.",
    lr=Rate, weight_decay=Decay, momentum=Momentum, nesterov=Nesterov,
    ns_steps=Annotated[int, "The number of Newton-Schulz iterations"],
)  # fmt: skip

schedule_free_adamw = component(
    optimizers.AdamWScheduleFree,
    "Schedule-free AdamW: averages its weights instead of using a schedule, and evaluates the average. "
    "The final model is the average. A checkpoint between two evaluations is not.",
    lr=Rate, betas=Betas, eps=Eps, weight_decay=Decay, warmup_steps=Warmup,
)  # fmt: skip

schedule_free_sgd = component(
    optimizers.SGDScheduleFree,
    "Schedule-free SGD: averages its weights instead of using a schedule, and evaluates the average. "
    "The final model is the average. A checkpoint between two evaluations is not.",
    lr=Rate, momentum=Momentum, weight_decay=Decay, warmup_steps=Warmup,
)  # fmt: skip
