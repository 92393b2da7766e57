"""Names of fine-tuned models, which end in the hex digits of the job's id. So no table of names is needed.

ft:<base>:<project>:<suffix>:<hex digits>                     the model of a job
ft:<base>:<project>:<suffix>:<hex digits>:ckpt-step-<step>    one of its checkpoints
"""

from __future__ import annotations

import re
from typing import NamedTuple

from footplate.contract.ids import JobId

_NAME = re.compile(r"ft:.{1,400}:[^:]*:[^:]*:(?P<job>[0-9a-f]{32})(?::ckpt-step-(?P<step>[0-9]{1,18}))?")


class ModelName(NamedTuple):
    job: JobId
    step: int | None
    """The step of the checkpoint. None: the final model."""


def model_name(base: str, project: str, suffix: str | None, job: JobId, step: int | None) -> str:
    checkpoint = "" if step is None else f":ckpt-step-{step}"
    return f"ft:{base}:{project}:{suffix or ''}:{job.removeprefix('job_')}{checkpoint}"


def read_model_name(name: str) -> ModelName | None:
    """Returns the parts of a name, or None if the text is not the name of a fine-tuned model."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    step = match["step"]
    return ModelName(JobId(f"job_{match['job']}"), None if step is None else int(step))
