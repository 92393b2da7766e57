"""Schedules that one of several optimizers may follow: those of Hugging Face and torch, by name.

One is called with its optimizer first, and then with what the spec says under `args`. Those that fall over the whole
run learn from `num_training_steps` how long that is; left out, it is as many steps as their optimizer makes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

Warmup = Annotated[int, "Steps over which the rate rises from 0"]
Total = Annotated[int | None, "Steps from start to end; null uses all steps of the optimizer"]
Waves = Annotated[float, "Number of waves of the cosine; 0.5 ends at the bottom"]
Gamma = Annotated[float, "The factor for the rate"]
Floor = Annotated[float | None, "Rate at the end"]
FloorShare = Annotated[float | None, "Rate at the end as a share of the peak, instead of min_lr"]


def constant(optimizer: Any, /) -> Any:
    """Keeps the optimizer's own rate."""
    from footplate.trainer.schedules import get_constant_schedule

    return get_constant_schedule(optimizer)


def constant_with_warmup(optimizer: Any, /, *, num_warmup_steps: Warmup = 0) -> Any:
    """Rises from 0 during the warm-up, then stays constant."""
    from footplate.trainer.schedules import get_constant_schedule_with_warmup

    return get_constant_schedule_with_warmup(optimizer, num_warmup_steps)


def linear(optimizer: Any, /, *, num_warmup_steps: Warmup = 0, num_training_steps: Total = None) -> Any:
    """Rises from 0 during the warm-up, then falls linearly to 0."""
    from footplate.trainer.schedules import get_linear_schedule_with_warmup

    return get_linear_schedule_with_warmup(optimizer, num_warmup_steps, _known(num_training_steps))


def cosine(
    optimizer: Any, /, *, num_warmup_steps: Warmup = 0, num_training_steps: Total = None, num_cycles: Waves = 0.5
) -> Any:
    """Follows a cosine after the warm-up. Half a wave ends at 0."""
    from footplate.trainer.schedules import get_cosine_schedule_with_warmup

    return get_cosine_schedule_with_warmup(optimizer, num_warmup_steps, _known(num_training_steps), num_cycles)


def cosine_with_restarts(
    optimizer: Any,
    /,
    *,
    num_warmup_steps: Warmup = 0,
    num_training_steps: Total = None,
    num_cycles: Annotated[int, "The number of falls to 0"] = 1,
) -> Any:
    """Falls to 0 along half a cosine several times, and jumps back to the peak in between."""
    from footplate.trainer.schedules import get_cosine_with_hard_restarts_schedule_with_warmup

    total = _known(num_training_steps)
    return get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, num_warmup_steps, total, num_cycles)


def polynomial(
    optimizer: Any,
    /,
    *,
    num_warmup_steps: Warmup = 0,
    num_training_steps: Total = None,
    lr_end: Annotated[float, "Rate at the end"] = 1e-7,
    power: Annotated[float, "The exponent; 1 is linear"] = 1.0,
) -> Any:
    """Falls to lr_end, in proportion to the remaining part of the run to the power `power`."""
    from footplate.trainer.schedules import get_polynomial_decay_schedule_with_warmup

    total = _known(num_training_steps)
    return get_polynomial_decay_schedule_with_warmup(optimizer, num_warmup_steps, total, lr_end, power)


def inverse_sqrt(
    optimizer: Any,
    /,
    *,
    num_warmup_steps: Warmup = 0,
    timescale: Annotated[int | None, "The scale of the root in steps; null uses the warm-up's length"] = None,
) -> Any:
    """Falls with the inverse square root of the step."""
    from footplate.trainer.schedules import get_inverse_sqrt_schedule

    return get_inverse_sqrt_schedule(optimizer, num_warmup_steps, timescale)


def cosine_with_min_lr(
    optimizer: Any,
    /,
    *,
    num_warmup_steps: Warmup = 0,
    num_training_steps: Total = None,
    num_cycles: Waves = 0.5,
    min_lr: Floor = None,
    min_lr_rate: FloorShare = None,
) -> Any:
    """Follows a cosine that ends at a rate above 0."""
    from footplate.trainer.schedules import get_cosine_with_min_lr_schedule_with_warmup

    return get_cosine_with_min_lr_schedule_with_warmup(
        optimizer,
        num_warmup_steps,
        _known(num_training_steps),
        num_cycles,
        min_lr=min_lr,
        min_lr_rate=min_lr_rate,
    )


def cosine_warmup_with_min_lr(
    optimizer: Any,
    /,
    *,
    num_warmup_steps: Warmup = 0,
    num_training_steps: Total = None,
    num_cycles: Waves = 0.5,
    min_lr: Floor = None,
    min_lr_rate: FloorShare = None,
    warmup_lr_rate: Annotated[float | None, "The start of the warm-up, as a share of the peak"] = None,
) -> Any:
    """Follows a cosine that ends at a rate above 0. Its warm-up may start above 0 too."""
    from footplate.trainer.schedules import get_cosine_with_min_lr_schedule_with_warmup_lr_rate

    return get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
        optimizer,
        num_warmup_steps,
        _known(num_training_steps),
        num_cycles,
        min_lr=min_lr,
        min_lr_rate=min_lr_rate,
        warmup_lr_rate=warmup_lr_rate,
    )


def warmup_stable_decay(
    optimizer: Any,
    /,
    *,
    num_decay_steps: Annotated[int, "Steps over which the rate falls at the end"],
    num_warmup_steps: Warmup = 0,
    num_training_steps: Total = None,
    warmup_type: Annotated[Literal["linear", "cosine", "1-sqrt"], "How it rises"] = "linear",
    decay_type: Annotated[Literal["linear", "cosine", "1-sqrt"], "How it falls"] = "cosine",
    min_lr_ratio: Annotated[float, "Rate at the end, as a share of the peak"] = 0.0,
) -> Any:
    """Rises, stays constant, and falls at the end."""
    from footplate.trainer.schedules import get_wsd_schedule

    return get_wsd_schedule(
        optimizer,
        num_warmup_steps,
        num_decay_steps,
        _known(num_training_steps),
        warmup_type=warmup_type,
        decay_type=decay_type,
        min_lr_ratio=min_lr_ratio,
    )


def step_lr(optimizer: Any, /, *, step_size: Annotated[int, "Steps between two reductions"], gamma: Gamma = 0.1) -> Any:
    """Multiplies the rate by a factor every `step_size` steps."""
    from torch.optim.lr_scheduler import StepLR

    return StepLR(optimizer, step_size, gamma)


def multi_step_lr(
    optimizer: Any, /, *, milestones: Annotated[list[int], "Steps at which the rate falls"], gamma: Gamma = 0.1
) -> Any:
    """Multiplies the rate by a factor at each of the given steps."""
    from torch.optim.lr_scheduler import MultiStepLR

    return MultiStepLR(optimizer, milestones, gamma)


def exponential_lr(optimizer: Any, /, *, gamma: Gamma) -> Any:
    """Multiplies the rate by a factor in every step."""
    from torch.optim.lr_scheduler import ExponentialLR

    return ExponentialLR(optimizer, gamma)


def constant_lr(
    optimizer: Any,
    /,
    *,
    factor: Annotated[float, "Share of the rate at the start"] = 1 / 3,
    total_iters: Annotated[int, "Steps until the full rate"] = 5,
) -> Any:
    """Uses a share of the rate for some steps, then the full rate."""
    from torch.optim.lr_scheduler import ConstantLR

    return ConstantLR(optimizer, factor, total_iters)


def linear_lr(
    optimizer: Any,
    /,
    *,
    start_factor: Annotated[float, "Share of the rate at the start"] = 1 / 3,
    end_factor: Annotated[float, "Share of the rate at the end"] = 1.0,
    total_iters: Annotated[int, "Steps from start_factor to end_factor"] = 5,
) -> Any:
    """Moves the rate linearly from one share of it to another."""
    from torch.optim.lr_scheduler import LinearLR

    return LinearLR(optimizer, start_factor, end_factor, total_iters)


def polynomial_lr(
    optimizer: Any,
    /,
    *,
    total_iters: Annotated[int, "Steps until 0"] = 5,
    power: Annotated[float, "The exponent; 1 is linear"] = 1.0,
) -> Any:
    """Falls to 0, in proportion to the remaining part to the power `power`."""
    from torch.optim.lr_scheduler import PolynomialLR

    return PolynomialLR(optimizer, total_iters, power)


def cosine_annealing_lr(
    optimizer: Any,
    /,
    *,
    T_max: Annotated[int, "Steps from the peak to the bottom"],
    eta_min: Annotated[float, "Rate at the bottom"] = 0.0,
) -> Any:
    """Follows a cosine from the rate to the bottom and back."""
    from torch.optim.lr_scheduler import CosineAnnealingLR

    return CosineAnnealingLR(optimizer, T_max, eta_min)


def cosine_annealing_warm_restarts(
    optimizer: Any,
    /,
    *,
    T_0: Annotated[int, "Steps until the first restart"],
    T_mult: Annotated[int, "The factor by which each round is longer than the one before"] = 1,
    eta_min: Annotated[float, "Rate at the bottom"] = 0.0,
) -> Any:
    """Follows a cosine that restarts at the peak."""
    from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

    return CosineAnnealingWarmRestarts(optimizer, T_0, T_mult, eta_min)


def cyclic_lr(
    optimizer: Any,
    /,
    *,
    base_lr: Annotated[float, "Rate at the bottom"],
    max_lr: Annotated[float, "Rate at the top"],
    step_size_up: Annotated[int, "Steps up"] = 2000,
    step_size_down: Annotated[int | None, "Steps down; null uses as many as up"] = None,
    mode: Annotated[Literal["triangular", "triangular2", "exp_range"], "How the top falls"] = "triangular",
    gamma: Annotated[float, "The factor for the top in every step, for exp_range"] = 1.0,
    cycle_momentum: Annotated[bool, "Move the momentum in the opposite direction"] = True,
) -> Any:
    """Moves up and down between two rates."""
    from torch.optim.lr_scheduler import CyclicLR

    return CyclicLR(
        optimizer,
        base_lr,
        max_lr,
        step_size_up,
        step_size_down,
        mode,
        gamma,
        cycle_momentum=cycle_momentum,
    )


def one_cycle_lr(
    optimizer: Any,
    /,
    *,
    max_lr: Annotated[float, "Rate at the top"],
    num_training_steps: Total = None,
    pct_start: Annotated[float, "Share of the steps in which the rate rises"] = 0.3,
    anneal_strategy: Annotated[Literal["cos", "linear"], "How it falls"] = "cos",
    cycle_momentum: Annotated[bool, "Move the momentum in the opposite direction"] = True,
    div_factor: Annotated[float, "The divisor of max_lr for the first rate"] = 25.0,
    final_div_factor: Annotated[float, "The divisor of the first rate for the last rate"] = 1e4,
) -> Any:
    """Rises to the top once and falls again, over the whole run."""
    from torch.optim.lr_scheduler import OneCycleLR

    return OneCycleLR(
        optimizer,
        max_lr,
        _known(num_training_steps),
        pct_start=pct_start,
        anneal_strategy=anneal_strategy,
        cycle_momentum=cycle_momentum,
        div_factor=div_factor,
        final_div_factor=final_div_factor,
    )


def _known(steps: int | None) -> int:
    """Returns the number of steps. Without a Trainer, the caller must pass it."""
    if steps is None:
        raise ValueError("this schedule lasts for the whole run: set num_training_steps")
    return steps
