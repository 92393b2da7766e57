"""Where an attempt's files lie, seen from the artifact store's root. An attempt writes only below its own folder."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from footplate.contract.ids import CheckpointId, JobId

PROBE = ".footplate-store"
"""Written by the service at the root; a node that cannot read it gets no work."""

MANIFEST = "manifest.json"

PASSED_ONLY = 0o711
"""The mode of folders whose names nobody but their owner lists: who does not know a name does not find it."""


def job_folder(job: JobId) -> PurePosixPath:
    return PurePosixPath("jobs") / job


def attempt_folder(job: JobId, attempt: int) -> PurePosixPath:
    return job_folder(job) / "attempts" / str(attempt)


def checkpoint_folder(job: JobId, attempt: int, step: int) -> PurePosixPath:
    return attempt_folder(job, attempt) / f"checkpoint-{step}"


BEST_BEFORE = "best-before"
"""In an attempt's folder: the best checkpoint that another job had where this one goes on."""
_CHECKPOINT = re.compile(rf"jobs/job_[0-9a-f]{{32}}/attempts/\d+/(?:{BEST_BEFORE}/)?checkpoint-\d+$")


def checkpoint_in(path: str) -> str | None:
    """What a path says of the store that was written down on another node, whose root is another one."""
    found = _CHECKPOINT.search(path)
    return found[0] if found else None


def pinned_folder(job: JobId, checkpoint: CheckpointId, step: int) -> PurePosixPath:
    """A second name of a checkpoint that is kept for good, where no attempt writes."""
    return job_folder(job) / "pinned" / checkpoint / f"checkpoint-{step}"


OUTPUTS = "outputs"


def outputs_folder(job: JobId, attempt: int) -> PurePosixPath:
    return attempt_folder(job, attempt) / OUTPUTS


def bundle_file(sha256: str) -> PurePosixPath:
    """A bundle of users' code, whoever brought it: equal bytes are one file."""
    return PurePosixPath("bundles") / f"{sha256}.zip"


UPLOADS = PurePosixPath("files")
"""Where each uploaded file lies under its id."""
