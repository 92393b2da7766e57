"""Schedules of Hugging Face and of torch that a spec may name for one of several optimizers.

A schedule over the whole run has the argument `num_training_steps`, by default the number of the optimizer's steps.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from torch.optim import lr_scheduler

from footplate.components.component import component
from footplate.trainer import schedules

Warmup = Annotated[int, "Steps over which the rate rises from 0"]
Total = Annotated[int | None, "Steps from start to end; null uses all steps of the optimizer"]
Waves = Annotated[float, "Number of waves of the cosine; 0.5 ends at the bottom"]
Gamma = Annotated[float, "The factor for the rate"]
Floor = Annotated[float | None, "Rate at the end"]
FloorShare = Annotated[float | None, "Rate at the end as a share of the peak, instead of min_lr"]
Power = Annotated[float, "The exponent; 1 is linear"]
Ramp = Literal["linear", "cosine", "1-sqrt"]
StartShare = Annotated[float, "Share of the rate at the start"]
Bottom = Annotated[float, "Rate at the bottom"]
Top = Annotated[float, "Rate at the top"]
CycleMomentum = Annotated[bool, "Move the momentum in the opposite direction"]

NO_WARMUP: dict[str, Any] = {"num_warmup_steps": 0}
OVER_THE_RUN: dict[str, Any] = {"num_warmup_steps": 0, "num_training_steps": None}

# Schedules of Hugging Face

constant = component(schedules.get_constant_schedule, "Keeps the optimizer's own rate.")

constant_with_warmup = component(
    schedules.get_constant_schedule_with_warmup,
    "Rises from 0 during the warm-up, then stays constant.",
    defaults=NO_WARMUP, num_warmup_steps=Warmup,
)  # fmt: skip

linear = component(
    schedules.get_linear_schedule_with_warmup,
    "Rises from 0 during the warm-up, then falls linearly to 0.",
    defaults=OVER_THE_RUN, num_warmup_steps=Warmup, num_training_steps=Total,
)  # fmt: skip

cosine = component(
    schedules.get_cosine_schedule_with_warmup,
    "Rises from 0 during the warm-up, then follows a cosine. With `num_cycles` 0.5 it falls to 0 once.",
    defaults=OVER_THE_RUN, num_warmup_steps=Warmup, num_training_steps=Total, num_cycles=Waves,
)  # fmt: skip

cosine_with_restarts = component(
    schedules.get_cosine_with_hard_restarts_schedule_with_warmup,
    "Falls to 0 along half a cosine several times, and jumps back to the peak in between.",
    defaults=OVER_THE_RUN, num_warmup_steps=Warmup, num_training_steps=Total,
    num_cycles=Annotated[int, "The number of falls to 0"],
)  # fmt: skip

polynomial = component(
    schedules.get_polynomial_decay_schedule_with_warmup,
    "Rises from 0 during the warm-up, then falls to lr_end like (the remaining share of steps) ** power.",
    defaults=OVER_THE_RUN, num_warmup_steps=Warmup, num_training_steps=Total,
    lr_end=Annotated[float, "Rate at the end"], power=Power,
)  # fmt: skip

inverse_sqrt = component(
    schedules.get_inverse_sqrt_schedule,
    "Falls with the inverse square root of the step.",
    defaults=NO_WARMUP, num_warmup_steps=Warmup,
    timescale=Annotated[int | None, "The scale of the root in steps; null uses the warm-up's length"],
)  # fmt: skip

cosine_with_min_lr = component(
    schedules.get_cosine_with_min_lr_schedule_with_warmup,
    "Follows a cosine that ends at a rate above 0.",
    defaults=OVER_THE_RUN, num_warmup_steps=Warmup, num_training_steps=Total, num_cycles=Waves,
    min_lr=Floor, min_lr_rate=FloorShare,
)  # fmt: skip

cosine_warmup_with_min_lr = component(
    schedules.get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    "Follows a cosine that ends at a rate above 0. Its warm-up may start above 0 too.",
    defaults=OVER_THE_RUN, num_warmup_steps=Warmup, num_training_steps=Total, num_cycles=Waves,
    min_lr=Floor, min_lr_rate=FloorShare,
    warmup_lr_rate=Annotated[float | None, "The start of the warm-up, as a share of the peak"],
)  # fmt: skip

warmup_stable_decay = component(
    schedules.get_wsd_schedule,
    "Rises, stays constant, and falls at the end.",
    defaults=OVER_THE_RUN,
    num_decay_steps=Annotated[int, "Steps over which the rate falls at the end"],
    num_warmup_steps=Warmup, num_training_steps=Total,
    warmup_type=Annotated[Ramp, "The curve of the warm-up"], decay_type=Annotated[Ramp, "The curve of the decay"],
    min_lr_ratio=Annotated[float, "Rate at the end, as a share of the peak"],
)  # fmt: skip

# Schedules of torch

step_lr = component(
    lr_scheduler.StepLR,
    "Multiplies the rate by a factor every `step_size` steps.",
    step_size=Annotated[int, "Steps between two reductions"], gamma=Gamma,
)  # fmt: skip

multi_step_lr = component(
    lr_scheduler.MultiStepLR,
    "Multiplies the rate by a factor at each of the given steps.",
    milestones=Annotated[list[int], "Steps at which the rate falls"], gamma=Gamma,
)  # fmt: skip

exponential_lr = component(lr_scheduler.ExponentialLR, "Multiplies the rate by a factor in every step.", gamma=Gamma)

constant_lr = component(
    lr_scheduler.ConstantLR,
    "Uses a share of the rate for some steps, then the full rate.",
    factor=StartShare, total_iters=Annotated[int, "Steps until the full rate"],
)  # fmt: skip

linear_lr = component(
    lr_scheduler.LinearLR,
    "Moves the rate linearly from one factor of the optimizer's rate to another factor.",
    start_factor=StartShare, end_factor=Annotated[float, "Share of the rate at the end"],
    total_iters=Annotated[int, "Steps from start_factor to end_factor"],
)  # fmt: skip

polynomial_lr = component(
    lr_scheduler.PolynomialLR,
    "Falls to 0 like (1 - step / total_iters) ** power.",
    total_iters=Annotated[int, "Steps until 0"], power=Power,
)  # fmt: skip

cosine_annealing_lr = component(
    lr_scheduler.CosineAnnealingLR,
    "Falls along a cosine to eta_min in `T_max` steps, then rises back to the peak.",
    T_max=Annotated[int, "Steps from the peak to the bottom"], eta_min=Bottom,
)  # fmt: skip

cosine_annealing_warm_restarts = component(
    lr_scheduler.CosineAnnealingWarmRestarts,
    "Follows a cosine that restarts at the peak.",
    T_0=Annotated[int, "Steps until the first restart"],
    T_mult=Annotated[int, "Each period is longer than the one before by this factor"], eta_min=Bottom,
)  # fmt: skip

cyclic_lr = component(
    lr_scheduler.CyclicLR,
    "Moves up and down between two rates.",
    base_lr=Bottom, max_lr=Top,
    step_size_up=Annotated[int, "Steps up"],
    step_size_down=Annotated[int | None, "Steps down; null uses as many as up"],
    mode=Annotated[
        Literal["triangular", "triangular2", "exp_range"],
        "The change of the upper rate: none, halved in each cycle, or times gamma in each step",
    ],
    gamma=Annotated[float, "The factor of the upper rate in each step, for exp_range"],
    cycle_momentum=CycleMomentum,
)  # fmt: skip


def one_cycle_lr(
    optimizer: Any,
    /,
    *,
    max_lr: Top,
    num_training_steps: Total = None,
    pct_start: Annotated[float, "Share of the steps in which the rate rises"] = 0.3,
    anneal_strategy: Annotated[Literal["cos", "linear"], "The curve of the rise and of the fall"] = "cos",
    cycle_momentum: CycleMomentum = True,
    div_factor: Annotated[float, "The first rate is max_lr divided by this number"] = 25.0,
    final_div_factor: Annotated[float, "The last rate is the first rate divided by this number"] = 1e4,
) -> Any:
    """Rises to max_lr once and falls again, over the whole run."""
    # torch calls the length total_steps.
    return lr_scheduler.OneCycleLR(
        optimizer, max_lr, num_training_steps, pct_start=pct_start, anneal_strategy=anneal_strategy,
        cycle_momentum=cycle_momentum, div_factor=div_factor, final_div_factor=final_div_factor,
    )  # fmt: skip
