"""Optimizers that a spec may name in `optimizers`, each over parameters of its own.

One is called with its parameters first, and then with what the spec says under `args`.
"""

from __future__ import annotations

from typing import Annotated, Any

Rate = Annotated[float, "Learning rate: how far a step goes"]
Betas = Annotated[tuple[float, float], "How much of the running means of gradients, and of their squares, stays"]
Eps = Annotated[float, "Added where it would be divided by zero"]
Decay = Annotated[float, "Weight decay: how strongly weights are drawn to zero"]
Momentum = Annotated[float, "How much of the step before is in the next one"]


def adamw(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 1e-2,
    amsgrad: Annotated[bool, "Whether steps follow the largest second moment so far"] = False,
) -> Any:
    """Adam whose weight decay is apart from the gradients."""
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
    amsgrad: Annotated[bool, "Whether steps follow the largest second moment so far"] = False,
) -> Any:
    """A step for each number, by the running means of its gradient and of its square."""
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
    """Adam by the largest gradient in place of their squares."""
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
    momentum_decay: Annotated[float, "How fast the momentum's share changes"] = 4e-3,
    decoupled_weight_decay: Annotated[bool, "Whether decay is apart from the gradients, as AdamW's"] = False,
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
    decoupled_weight_decay: Annotated[bool, "Whether decay is apart from the gradients, as AdamW's"] = False,
) -> Any:
    """Adam that warms up by itself, by how sure it is of its second moments."""
    from torch.optim import RAdam

    return RAdam(parameters, lr, betas, eps, weight_decay, decoupled_weight_decay)


def sgd(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-3,
    momentum: Momentum = 0.0,
    dampening: Annotated[float, "How much of the newest gradient is left out of the momentum"] = 0.0,
    weight_decay: Decay = 0.0,
    nesterov: Annotated[bool, "Whether the gradient is taken as if the momentum had been followed already"] = False,
) -> Any:
    """Down the gradient, with momentum where it is given."""
    from torch.optim import SGD

    return SGD(parameters, lr, momentum, dampening, weight_decay, nesterov)


def rmsprop(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-2,
    alpha: Annotated[float, "How much of the running mean of squares stays"] = 0.99,
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.0,
    momentum: Momentum = 0.0,
    centered: Annotated[bool, "Whether the mean gradient is taken off first"] = False,
) -> Any:
    """The gradient over the root of the running mean of its square."""
    from torch.optim import RMSprop

    return RMSprop(parameters, lr, alpha, eps, weight_decay, momentum, centered)


def adagrad(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-2,
    lr_decay: Annotated[float, "How fast the rate falls with the steps"] = 0.0,
    weight_decay: Decay = 0.0,
    initial_accumulator_value: Annotated[float, "Where the sum of squares starts"] = 0.0,
    eps: Eps = 1e-10,
) -> Any:
    """The gradient over the root of the sum of all squares so far."""
    from torch.optim import Adagrad

    return Adagrad(parameters, lr, lr_decay, weight_decay, initial_accumulator_value, eps)


def adadelta(
    parameters: Any,
    /,
    *,
    lr: Rate = 1.0,
    rho: Annotated[float, "How much of the running mean of squares stays"] = 0.9,
    eps: Eps = 1e-6,
    weight_decay: Decay = 0.0,
) -> Any:
    """Steps as large as those before them were, so that it hardly needs a rate."""
    from torch.optim import Adadelta

    return Adadelta(parameters, lr, rho, eps, weight_decay)


def adafactor(
    parameters: Any,
    /,
    *,
    lr: Annotated[float | None, "Learning rate; null, with relative_step, finds it by the step"] = 1e-3,
    eps: Annotated[tuple[float, float], "Added to squared gradients, and the least size of a weight"] = (1e-30, 1e-3),
    clip_threshold: Annotated[float, "Largest root mean square of a step"] = 1.0,
    decay_rate: Annotated[float, "How the running mean of squares lengthens with the steps"] = -0.8,
    beta1: Annotated[float | None, "How much of the running mean of gradients stays; null keeps none"] = None,
    weight_decay: Decay = 0.0,
    scale_parameter: Annotated[bool, "Whether steps are relative to the size of the weights"] = False,
    relative_step: Annotated[bool, "Whether the rate follows the step; needs lr null"] = False,
    warmup_init: Annotated[bool, "Whether a rate that follows the step starts small"] = False,
) -> Any:
    """Adam in a fraction of the memory: second moments by rows and columns."""
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
    betas: Annotated[tuple[float, float], "How much momentum is in a step, and how much of it stays"] = (0.9, 0.99),
    weight_decay: Decay = 0.0,
) -> Any:
    """Steps of one size, by the signs of a momentum. Wants a rate some ten times smaller than AdamW's."""
    from footplate.trainer.optimizers import Lion

    return Lion(parameters, lr, betas, weight_decay)


def muon(
    parameters: Any,
    /,
    *,
    lr: Rate = 1e-3,
    weight_decay: Decay = 0.1,
    momentum: Momentum = 0.95,
    nesterov: Annotated[bool, "Whether the gradient is taken as if the momentum had been followed already"] = True,
    ns_steps: Annotated[int, "Rounds of the Newton-Schulz iteration"] = 5,
) -> Any:
    """Orthogonal steps for matrices; give vectors and embeddings to another optimizer."""
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
    """AdamW that averages its own weights, in place of a schedule. Averaged weights are evaluated."""
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
    """SGD that averages its own weights, in place of a schedule. Averaged weights are evaluated."""
    from footplate.trainer.optimizers import SGDScheduleFree

    return SGDScheduleFree(parameters, lr, momentum, weight_decay, warmup_steps)
