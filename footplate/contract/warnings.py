"""Warnings about a valid spec: the job runs, but perhaps not as its user expects.

The answers of `POST /jobs` and `POST /jobs/validate` contain the warnings, and the job stores them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from footplate.contract.arguments.legacy import LEGACY, RenamedArgument
from footplate.contract.resources.jobs import SpecWarning
from footplate.contract.spec import Accepted, JobSpec


def warnings_of(accepted: Accepted) -> list[SpecWarning]:
    """Returns the warnings about a spec. Their pointers refer to the body of the request."""
    training = accepted.body.get("training", {})
    return [*_older_names(training), *_loss_not_shown(accepted.spec, training)]


def _older_names(training: dict[str, Any]) -> Iterator[SpecWarning]:
    for name in training:
        if isinstance(removed_argument := LEGACY.get(name), RenamedArgument):
            detail = f"{name} is an older name. Stored instead: {removed_argument.instead}"
            yield SpecWarning(code="older_name", pointer=f"/training/{name}", detail=detail)


def _loss_not_shown(spec: JobSpec, training: dict[str, Any]) -> Iterator[SpecWarning]:
    args = spec.training
    is_logged_by_steps = args.logging_strategy == "steps" and not args.logging_first_step
    if spec.library_trainer is not None and "logging_steps" not in training:
        return  # The library trainer's default of logging_steps is unknown to the service.
    if (
        spec.loop is None
        and spec.data.train is not None
        and is_logged_by_steps
        and 0 < args.max_steps < args.logging_steps
    ):
        name = "logging_steps" if "logging_steps" in training else "max_steps"
        detail = (
            f"no training loss will be shown: the run ends after {args.max_steps} steps (max_steps), "
            f"and the first log comes after {args.logging_steps:g} (logging_steps). Set logging_steps lower"
        )
        yield SpecWarning(code="no_loss_shown", pointer=f"/training/{name}", detail=detail)
