"""Where a job's trackers write, and how their runs outlive an attempt."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from footplate.contract.host.launch import Order
from footplate.contract.layout import attempt_folder
from footplate.contract.spec import JobSpec

FOLDER = "tensorboard"
"""Below the outputs."""


def arguments(spec: JobSpec, order: Order) -> dict[str, Any]:
    """What the Trainer is told of trackers: each attempt has the same run's name, and files in its own outputs."""
    if not spec.report_to:
        return {"report_to": "none"}
    return {
        "report_to": list(spec.report_to),
        "run_name": spec.training.run_name or spec.name or order.job,
        "logging_dir": str(order.files.outputs / FOLDER),
    }


def carry_over(order: Order) -> Path | None:
    """What attempts before this one have told TensorBoard, so that the run goes on where they stopped.

    An attempt writes below its own folder only, so the files are copied; what they tell of steps after the checkpoint
    is passed over when the run goes on.
    """
    mine = order.files.outputs / FOLDER
    if not order.checkpoints or mine.exists():
        return None
    for attempt in range(order.attempt - 1, 0, -1):
        theirs = order.artifacts / attempt_folder(order.job, attempt) / "outputs" / FOLDER
        if theirs.is_dir():
            shutil.copytree(theirs, mine)
            return mine
    return None
