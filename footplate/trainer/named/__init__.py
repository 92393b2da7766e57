r"""Several optimizers in one loop, each with its own parameters, loss, schedule, clip and cadence.

    optimizers=[
        NamedOptimizer("main", params=[".*(?<!quantiles)$"], use="adam", args={"lr": 1e-4}),
        NamedOptimizer("aux", params=[r"\.quantiles$"], use="adam", args={"lr": 1e-3}, loss="aux_loss"),
    ]

What happens in a step, in order:

    for each micro-batch: forward; each loss that is a key of the output, and then the main loss, sends gradients to the
                          parameters of its own optimizers only
    for each optimizer in the order of the list, if this step is a multiple of its `every`:
        if its loss is a method of the model, compute it now, with the weights that earlier optimizers have moved
        clip, step, schedule
    all gradients are dropped: an optimizer that steps every fifth step uses the gradients of that step only

The Trainer sees the several optimizers as one optimizer, and their schedules as one schedule.
"""

from footplate.trainer.named.named_optimizer import NamedOptimizer
from footplate.trainer.named.optimizer import FollowEpochs, NamedOptimizers, NamedSchedules, all_named, backward_of

__all__ = ["FollowEpochs", "NamedOptimizer", "NamedOptimizers", "NamedSchedules", "all_named", "backward_of"]
