"""The paths of files in the artifact store, relative to its root. An attempt writes only below its own folder."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from footplate.contract.ids import CheckpointId, JobId, UploadId

PROBE = ".footplate-store"
"""A file that the service writes at the store's root. A node that cannot read the file gets no work."""

MANIFEST = "manifest.json"

PASSED_ONLY = 0o711
"""The mode of folders that only their owner may list. Other users can open a file in the folder if they know its
name."""


def job_folder(job: JobId) -> PurePosixPath:
    return PurePosixPath("jobs") / job


def attempt_folder(job: JobId, attempt: int) -> PurePosixPath:
    return job_folder(job) / "attempts" / str(attempt)


def checkpoint_folder(job: JobId, attempt: int, step: int) -> PurePosixPath:
    return attempt_folder(job, attempt) / f"checkpoint-{step}"


BEST_BEFORE = "best-before"
"""The folder in which an attempt that continues from another job's checkpoint keeps that job's best checkpoint."""
_CHECKPOINT = re.compile(rf"jobs/job_[0-9a-f]{{32}}/attempts/\d+/(?:{BEST_BEFORE}/)?checkpoint-\d+$")


def checkpoint_in(path: str) -> str | None:
    """Returns the part of a checkpoint's path below the store's root, or None for a path of another form.

    Nodes mount the store at different roots, so absolute paths cannot be compared.
    """
    match = _CHECKPOINT.search(path)
    return match[0] if match else None


def pinned_folder(job: JobId, checkpoint: CheckpointId, step: int) -> PurePosixPath:
    """Returns the folder with hard links to a pinned checkpoint's files, in which no attempt writes."""
    return job_folder(job) / "pinned" / checkpoint / f"checkpoint-{step}"


OUTPUTS = "outputs"


def outputs_folder(job: JobId, attempt: int) -> PurePosixPath:
    return attempt_folder(job, attempt) / OUTPUTS


def bundle_file(sha256: str) -> PurePosixPath:
    """Returns the path of a bundle. Bundles with equal content share one file, even if different users upload them."""
    return PurePosixPath("bundles") / f"{sha256}.zip"


UPLOADS = PurePosixPath("files")
"""The folder of uploaded files. Each file is named by its id."""


def parts_folder(upload: UploadId) -> PurePosixPath:
    """Returns the folder for the parts of an upload that is not complete."""
    return PurePosixPath("parts") / upload
