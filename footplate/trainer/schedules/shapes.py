"""Computes factors of the peak rate by step, with Hugging Face's order of operations, so that results are identical."""

from __future__ import annotations

import math
from typing import Literal

Ramp = Literal["linear", "cosine", "1-sqrt"]
RAMPS: tuple[Ramp, ...] = ("linear", "cosine", "1-sqrt")


def constant(step: int) -> float:
    return 1.0


def constant_with_warmup(step: int, *, warmup: int) -> float:
    return step / max(1.0, warmup) if step < warmup else 1.0


def linear(step: int, *, warmup: int, total: int) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, (total - step) / max(1, total - warmup))


def cosine(step: int, *, warmup: int, total: int, num_cycles: float) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, _wave(num_cycles, _progress(step, warmup, total)))


def cosine_with_restarts(step: int, *, warmup: int, total: int, num_cycles: float) -> float:
    if step < warmup:
        return step / max(1, warmup)
    progress = _progress(step, warmup, total)
    if progress >= 1.0:
        return 0.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((float(num_cycles) * progress) % 1.0))))


def polynomial(step: int, *, warmup: int, total: int, peak: float, lr_end: float, power: float) -> float:
    if step < warmup:
        return step / max(1, warmup)
    if step > total:
        return lr_end / peak
    remaining = 1 - (step - warmup) / max(1, total - warmup)
    return float((peak - lr_end) * remaining**power + lr_end) / peak


def inverse_sqrt(step: int, *, warmup: int, timescale: int) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return 1.0 / math.sqrt((step + (timescale - warmup)) / timescale)


def cosine_with_floor(step: int, *, warmup: int, total: int, num_cycles: float, floor: float) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, _above(floor, _wave(num_cycles, _progress(step, warmup, total))))


def cosine_with_floor_from_one(
    step: int, *, warmup: int, total: int, num_cycles: float, floor: float, start: float | None
) -> float:
    """The cosine schedule, with steps from 1. `start` is the first rate as a share of the peak, or 1 / warmup."""
    if step < warmup:
        if start is None:
            return (step + 1.0) / max(1.0, warmup)
        return start + (1.0 - start) * float(step) / max(1, warmup - 1)
    progress = (step - warmup + 1.0) / max(1.0, total - warmup)
    return max(0.0, _above(floor, _wave(num_cycles, progress)))


def warmup_stable_decay(
    step: int,
    *,
    warmup: int,
    stable: int,
    decay: int,
    warmup_type: Ramp,
    decay_type: Ramp,
    floor: float,
    num_cycles: float,
) -> float:
    if step < warmup:
        return max(0.0, _above(floor, _rise(warmup_type, step / max(1, warmup))))
    if step < warmup + stable:
        return 1.0
    if step < warmup + stable + decay:
        return max(0.0, _above(floor, _fall(decay_type, (step - warmup - stable) / max(1, decay), num_cycles)))
    return floor


def _progress(step: int, warmup: int, total: int) -> float:
    return (step - warmup) / max(1, total - warmup)


def _wave(num_cycles: float, progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * float(num_cycles) * 2.0 * progress))


def _above(floor: float, factor: float) -> float:
    return factor * (1 - floor) + floor


def _rise(ramp: Ramp, progress: float) -> float:
    if ramp == "linear":
        return progress
    return 0.5 * (1.0 - math.cos(math.pi * progress)) if ramp == "cosine" else 1.0 - math.sqrt(1.0 - progress)


def _fall(ramp: Ramp, progress: float, num_cycles: float) -> float:
    if ramp == "linear":
        return 1.0 - progress
    return _wave(num_cycles, progress) if ramp == "cosine" else 1.0 - math.sqrt(progress)
