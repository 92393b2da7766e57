r"""Several optimizers in one loop, each with its own parameters, loss, schedule, clip and cadence.

    optimizers=[
        NamedOptimizer("main", params=[".*(?<!quantiles)$"], use="adam", args={"lr": 1e-4}),
        NamedOptimizer("aux", params=[r"\.quantiles$"], use="adam", args={"lr": 1e-3}, loss="aux_loss"),
    ]

What happens in a step, in order:

    for each micro-batch: forward; each loss that is a key of the output, and then the main loss, sends gradients to the
                          parameters of its own optimizers, and to no others
    for each optimizer, as they are listed, if it is its turn:
        a loss that is a method of the model is called now, on the weights that those before have just moved
        clip, step, schedule
    all gradients are dropped: who steps every fifth time steps on the fifth's gradients

The Trainer sees one optimizer and one schedule.
"""

from footplate.trainer.named.optimizer import NamedOptimizers, all_named, backward_of
from footplate.trainer.named.schedules import FollowEpochs, NamedSchedules
from footplate.trainer.named.spec import NamedOptimizer

__all__ = ["FollowEpochs", "NamedOptimizer", "NamedOptimizers", "NamedSchedules", "all_named", "backward_of"]
