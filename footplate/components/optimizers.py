"""Optimizers that a spec may name in `optimizers`, each with its own parameters.

One is called with its parameters first, and then with what the spec says under `args`.
"""

from __future__ import annotations

from typing import Annotated, Any

Rate = Annotated[float, "Learning rate: the size of a step"]
Betas = Annotated[
    tuple[float, float], "The shares of the running means of gradients and of their squares that each step keeps"
]
Eps = Annotated[float, "A small number that is added to denominators"]
Decay = Annotated[float, "Weight decay: how strongly weights are pulled to zero"]
Momentum = Annotated[float, "The share of the previous step that is added to the next"]


def adamw(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 1e-2,
    amsgrad: Annotated[bool, "Divide by the largest second moment so far"] = False,
) -> Any:
    """AdamW: Adam with weight decay that is separate from the gradients."""
    from torch.optim import AdamW

    return AdamW(parameters, lr, betas, eps, weight_decay, amsgrad)


def adam(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.0,
    amsgrad: Annotated[bool, "Divide by the largest second moment so far"] = False,
) -> Any:
    """Adam: scales each weight's step by running means of its gradient and of the gradient's square."""
    from torch.optim import Adam

    return Adam(parameters, lr, betas, eps, weight_decay, amsgrad)


def adamax(
    parameters: Any,
    /,
    *,
    lr: Rate = 2e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.0,
) -> Any:
    """Adamax: Adam with the largest gradient instead of the mean of squares."""
    from torch.optim import Adamax

    return Adamax(parameters, lr, betas, eps, weight_decay)


def nadam(
    parameters: Any,
    /,
    *,
    lr: Rate = 2e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.0,
    momentum_decay: Annotated[float, "The speed at which the momentum changes"] = 4e-3,
    decoupled_weight_decay: Annotated[bool, "Keep weight decay separate from the gradients, as AdamW does"] = False,
) -> Any:
    """NAdam, which is Adam with Nesterov's momentum."""
    from torch.optim import NAdam

    return NAdam(parameters, lr, betas, eps, weight_decay, momentum_decay, decoupled_weight_decay)


def radam(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.0,
    decoupled_weight_decay: Annotated[bool, "Keep weight decay separate from the gradients, as AdamW does"] = False,
) -> Any:
    """RAdam: Adam that warms up by itself while its second moments are uncertain."""
    from torch.optim import RAdam

    return RAdam(parameters, lr, betas, eps, weight_decay, decoupled_weight_decay)


def sgd(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-3,
    momentum: Momentum = 0.0,
    dampening: Annotated[float, "The share of the newest gradient that the momentum leaves out"] = 0.0,
    weight_decay: Decay = 0.0,
    nesterov: Annotated[bool, "Use Nesterov's momentum, which looks one step ahead"] = False,
) -> Any:
    """Stochastic gradient descent, with optional momentum."""
    from torch.optim import SGD

    return SGD(parameters, lr, momentum, dampening, weight_decay, nesterov)


def rmsprop(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-2,
    alpha: Annotated[float, "The share of the running mean of squares that each step keeps"] = 0.99,
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.0,
    momentum: Momentum = 0.0,
    centered: Annotated[bool, "Subtract the mean gradient first"] = False,
) -> Any:
    """RMSprop: divides the gradient by the root of the running mean of its square."""
    from torch.optim import RMSprop

    return RMSprop(parameters, lr, alpha, eps, weight_decay, momentum, centered)


def adagrad(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-2,
    lr_decay: Annotated[float, "The speed at which the rate falls with the steps"] = 0.0,
    weight_decay: Decay = 0.0,
    initial_accumulator_value: Annotated[float, "The initial value of the sum of squares"] = 0.0,
    eps: Eps = 1e-10,
) -> Any:
    """Adagrad: divides the gradient by the root of the sum of all its squares so far."""
    from torch.optim import Adagrad

    return Adagrad(parameters, lr, lr_decay, weight_decay, initial_accumulator_value, eps)


def adadelta(
    parameters: Any,
    /,
    *,
    lr: Rate = 1.0,
    rho: Annotated[float, "The share of the running mean of squares that each step keeps"] = 0.9,
    eps: Eps = 1e-6,
    weight_decay: Decay = 0.0,
) -> Any:
    """Adadelta: scales steps by the size of earlier steps, so that the rate matters little."""
    from torch.optim import Adadelta

    return Adadelta(parameters, lr, rho, eps, weight_decay)


def adafactor(
    parameters: Any,
    /,
    *,
    lr: Annotated[float | None, "Learning rate; null computes it from the step, with relative_step"] = 1e-3,
    eps: Annotated[
        tuple[float, float], "A number added to squared gradients, and the smallest size of weights for scaling"
    ] = (1e-30, 1e-3),
    clip_threshold: Annotated[float, "The largest root mean square of a step"] = 1.0,
    decay_rate: Annotated[float, "The exponent by which the running mean of squares gets longer with the steps"] = -0.8,
    beta1: Annotated[
        float | None, "The share of the running mean of gradients that each step keeps; null keeps no mean"
    ] = None,
    weight_decay: Decay = 0.0,
    scale_parameter: Annotated[bool, "Scale steps by the size of the weights"] = False,
    relative_step: Annotated[bool, "Compute the rate from the step; needs lr null"] = False,
    warmup_init: Annotated[bool, "Start with a small rate, with relative_step"] = False,
) -> Any:
    """Adafactor: Adam with less memory, because second moments are stored by row and column."""
    from footplate.trainer.optimizers import Adafactor

    return Adafactor(
        parameters,
        lr,
        eps,
        clip_threshold,
        decay_rate,
        beta1,
        weight_decay,
        scale_parameter,
        relative_step,
        warmup_init,
    )


def lion(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-4,
    betas: Annotated[tuple[float, float], "The share of momentum in a step, and the share that each step keeps"] = (
        0.9,
        0.99,
    ),
    weight_decay: Decay = 0.0,
) -> Any:
    """Lion: steps by the sign of a momentum. It needs a rate about ten times smaller than AdamW's."""
    from footplate.trainer.optimizers import Lion

    return Lion(parameters, lr, betas, weight_decay)


def muon(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-3,
    weight_decay: Decay = 0.1,
    momentum: Momentum = 0.95,
    nesterov: Annotated[bool, "Use Nesterov's momentum, which looks one step ahead"] = True,
    ns_steps: Annotated[int, "The number of Newton-Schulz iterations"] = 5,
) -> Any:
    """Muon: orthogonal steps for matrices. Vectors and embeddings need another optimizer."""
    from torch.optim import Muon

    return Muon(parameters, lr, weight_decay, momentum, nesterov, ns_steps=ns_steps)


def schedule_free_adamw(
    parameters: Any,
    /,
    *,
    lr: Rate = 2.5e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.0,
    warmup_steps: Annotated[int, "Steps over which the rate rises"] = 0,
) -> Any:
    """Schedule-free AdamW: averages its weights instead of using a schedule, and evaluates the average."""
    from footplate.trainer.optimizers import AdamWScheduleFree

    return AdamWScheduleFree(parameters, lr, betas, eps, weight_decay, warmup_steps)


def schedule_free_sgd(
    parameters: Any,
    /,
    *,
    lr: Rate = 1.0,
    momentum: Momentum = 0.9,
    weight_decay: Decay = 0.0,
    warmup_steps: Annotated[int, "Steps over which the rate rises"] = 0,
) -> Any:
    """Schedule-free SGD: averages its weights instead of using a schedule, and evaluates the average."""
    from footplate.trainer.optimizers import SGDScheduleFree

    return SGDScheduleFree(parameters, lr, momentum, weight_decay, warmup_steps)
