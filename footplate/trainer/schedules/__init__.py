"""Learning rate schedules.

- `shapes.py`: pure functions that compute the factor of the peak rate for a step
- `factories.py`: Hugging Face's schedule functions, with its names and signatures, and `get_scheduler`
- `greedy.py`: GreedyLR, which follows a metric like ReduceLROnPlateau and moves after evaluations
"""

from footplate.trainer.schedules.factories import (
    TYPE_TO_SCHEDULER_FUNCTION,
    follows_a_metric,
    get_constant_schedule,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    get_greedy_schedule,
    get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
    get_reduce_on_plateau_schedule,
    get_scheduler,
    get_wsd_schedule,
)
from footplate.trainer.schedules.greedy import GreedyLR, StreamingAverage

__all__ = [
    "TYPE_TO_SCHEDULER_FUNCTION",
    "GreedyLR",
    "StreamingAverage",
    "follows_a_metric",
    "get_constant_schedule",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_greedy_schedule",
    "get_inverse_sqrt_schedule",
    "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup",
    "get_reduce_on_plateau_schedule",
    "get_scheduler",
    "get_wsd_schedule",
]
