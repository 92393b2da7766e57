"""The folders of a job's trackers, and how a tracker's run continues in the next attempt."""

from __future__ import annotations

import shutil
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from footplate.contract.host.launch import Order
from footplate.contract.layout import attempt_folder
from footplate.contract.spec import JobSpec

FOLDER = "tensorboard"
"""The folder's name below the outputs."""
FOLDERS = (FOLDER, "wandb", "mlflow", "trackio")
"""The folders of all trackers that write files. Below the outputs, so that the files can be downloaded."""


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


def use_outputs(spec: JobSpec, order: Order, environ: MutableMapping[str, str]) -> None:
    """Sets variables with which trackers write to the outputs what they do not send to a server.

    Variables that are set already are not changed. Without a key, W&B works offline instead of asking for the key.
    """
    outputs = order.files.outputs
    if "wandb" in spec.report_to:
        # W&B takes another folder if this one does not exist.
        outputs.mkdir(parents=True, exist_ok=True)
        environ.setdefault("WANDB_DIR", str(outputs))
        if "WANDB_API_KEY" not in environ:
            environ.setdefault("WANDB_MODE", "offline")
    if "mlflow" in spec.report_to and "MLFLOW_TRACKING_URI" not in environ:
        environ["MLFLOW_TRACKING_URI"] = str(outputs / "mlflow")
        environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    if "trackio" in spec.report_to:
        environ.setdefault("TRACKIO_DIR", str(outputs / "trackio"))


def carry_over(order: Order) -> list[Path]:
    """Copies the trackers' files of the last attempt that has some, so that the run continues.

    An attempt writes below its own folder only, so the files are copied. TensorBoard ignores their points after the
    checkpoint when the run continues.
    """
    return [mine for name in FOLDERS if order.checkpoints and (mine := _carried(order, name)) is not None]


def _carried(order: Order, name: str) -> Path | None:
    mine = order.files.outputs / name
    if mine.exists():
        return None
    for attempt in range(order.attempt - 1, 0, -1):
        theirs = order.artifacts / attempt_folder(order.job, attempt) / "outputs" / name
        if theirs.is_dir():
            shutil.copytree(theirs, mine, symlinks=True)
            return mine
    return None
