"""The folders of a job's trackers, and how a tracker's run continues in the next attempt."""

from __future__ import annotations

import shutil
from collections.abc import MutableMapping
from typing import Any

from footplate.contract.host.launch import Order
from footplate.contract.layout import outputs_folder
from footplate.contract.spec import JobSpec

FOLDER = "tensorboard"
"""TensorBoard's folder below an attempt's outputs."""
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
    """Sets the variables that make trackers write their files to the attempt's outputs.

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


def copy_earlier_files(order: Order) -> None:
    """Copies each tracker's files from the newest attempt that has some, so that the tracker's run continues.

    TensorBoard ignores the points after the checkpoint from which the run continues.
    """
    for name in FOLDERS if order.checkpoints else ():
        own_folder = order.files.outputs / name
        for attempt in range(order.attempt - 1, 0, -1):
            earlier_folder = order.artifacts / outputs_folder(order.job, attempt) / name
            if earlier_folder.is_dir() and not own_folder.exists():
                shutil.copytree(earlier_folder, own_folder, symlinks=True)
