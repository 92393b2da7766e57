"""The folders of a job's trackers, and how a tracker's run continues in the next attempt."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from footplate.contract.host.launch import Order
from footplate.contract.layout import attempt_folder
from footplate.contract.spec import JobSpec

FOLDER = "tensorboard"
"""The folder's name below the outputs."""


def arguments(spec: JobSpec, order: Order) -> dict[str, Any]:
    """Returns the Trainer's arguments for trackers.

    Each attempt has the same run name, and files in its own outputs.
    """
    if not spec.report_to:
        return {"report_to": "none"}
    return {
        "report_to": list(spec.report_to),
        "run_name": spec.training.run_name or spec.name or order.job,
        "logging_dir": str(order.files.outputs / FOLDER),
    }


def carry_over(order: Order) -> Path | None:
    """Copies the TensorBoard files of the last attempt that has some, so that the run continues.

    An attempt writes below its own folder only, so the files are copied. TensorBoard ignores their points after the
    checkpoint when the run continues.
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
