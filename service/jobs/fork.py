"""Forks a job from one of its checkpoints: merges a patch into its spec, and lists the changes.

All functions but `source` are pure. The new job is submitted as any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection

from footplate.contract.arguments import Seq2SeqTrainingArguments
from footplate.contract.body import pointer_to
from footplate.contract.errors import InvalidSpec, Problem, listing
from footplate.contract.ids import JobId
from footplate.contract.resources.jobs import ForkOf, ForkPoint, Inexact, SpecChange
from footplate.contract.spec import JobSpec
from service.jobs.start_checkpoint import StartCheckpoint, choose
from service.store import checkpoints, commands, jobs
from service.store.row_types import JobRow, loads
from service.store.stored_spec import StoredSpec, read_spec

Json = dict[str, Any]
MAX_NAMED = 20
"""The most changed fields that the note about a fork names. The response to the request has all of them."""

NEUTRAL_TRAINING = frozenset(
    {
        "logging_strategy", "logging_steps", "logging_first_step", "log_level", "log_level_replica", "log_on_each_node",
        "report_to", "run_name", "disable_tqdm", "save_strategy", "save_steps", "save_total_limit", "save_only_model",
        "save_in_background", "keep_last", "keep_best", "per_device_eval_batch_size", "do_eval", "do_predict",
        "skip_memory_metrics", "include_num_input_tokens_seen",
    }
)  # fmt: skip
NEUTRAL = (
    "/name", "/tags", "/metadata", "/project", "/priority", "/retry", "/report_to", "/secrets", "/metrics",
    "/compute_metrics", "/data/test", "/final_eval", "/resources/pool", "/resources/time_limit",
    "/resources/stall_limit", *(f"/training/{name}" for name in NEUTRAL_TRAINING),
)  # fmt: skip
"""Fields that have no effect on any step of training."""
WHY = (
    ("/data", "other data: the checkpoint's position in the data does not apply"),
    ("/model", "another model: the checkpoint's weights may not even fit it"),
    ("/processor", "batches are made in another way"),
    ("/collator", "batches are made in another way"),
    ("/loss", "another loss from here on"),
    ("/optimizers", "the optimizer changes"),
    ("/resources", "other hardware or another number of processes: random numbers and rounding differ"),
    ("/training/max_steps", "the schedule of the learning rate has another length"),
    ("/training/num_train_epochs", "the schedule of the learning rate has another length"),
    ("/training", "another value from here on"),
)
"""The reason why a change to a field alters the training, by the beginning of the field's pointer. The first matching
entry counts.
"""
LENGTHS = ("/training/max_steps", "/training/num_train_epochs")
"""Fields that change the schedule's length. A constant schedule does not depend on them."""
OTHER_CODE = "other code runs, or runs in another place"


def note_of(fork: ForkOf, spec: JobSpec) -> Json:
    """Returns the data of the note with which the fork's history begins: the old job, and the changed pointers.

    The note does not contain the changed values, because the values of `env` may be secret.
    """
    step = fork.checkpoint.step
    verb = "continues from" if fork.mode == "full" else "takes the weights of"
    changed_fields = _some([change.pointer for change in fork.changes]) or "nothing"
    message = f"{verb} job {fork.job} at step {step}; the fork changes {changed_fields}"
    if fork.mode == "full":
        reasons = _some([change.pointer for change in fork.breaks_exactness])
        differs = f"training differs from that job because of {reasons}"
        message += f"; {'training is bit-identical to that job' if fork.exact else differs}"
        if 0 < spec.training.max_steps <= step:
            message += f"; no step is left to train, because max_steps is {spec.training.max_steps}"
    checkpoint = fork.checkpoint.model_dump()
    return {"message": message, "code": "forked", "job": fork.job, "checkpoint": checkpoint, "mode": fork.mode}


def source(conn: Connection, project: str, job_id: JobId, name: str) -> tuple[StartCheckpoint, Json]:
    """Returns a job's checkpoint, and the training arguments that live commands have changed without changing its spec.

    Raises NotFound, and InvalidSpec if the job has no such checkpoint.
    """
    job = jobs.get(conn, project, job_id)
    was_set: Json = {}
    for command in commands.of_job(conn, job_id):
        was_set |= command.set if command.step is not None else {}
    return StartCheckpoint(job, choose(checkpoints.of_job(conn, job_id), job, name)), was_set


def document_of(job: JobRow) -> StoredSpec:
    """Returns a job's spec with defaults filled in and with its amended fields, but without `resume_from`."""
    spec = read_spec(job.spec)
    spec.update({"name": job.name, "tags": loads(job.tags), "metadata": loads(job.job_metadata)})
    spec.update({"priority": job.priority, "resume_from": None})
    return spec


def patched(start: StartCheckpoint, patch: Mapping[str, Any], mode: str) -> Json:
    """Returns the new job's spec before any check. Raises InvalidSpec if the patch has a forbidden field."""
    document = document_of(start.job)
    if "resume_from" in patch:
        hint = "send checkpoint and mode as fields beside `patch`, or submit a whole spec with POST /jobs"
        detail = "cannot be patched, because a fork starts from the job that is forked"
        raise InvalidSpec([Problem("/patch/resume_from", "not_patchable", detail, hint)])
    if patch.get("project", document["project"]) != document["project"]:
        detail = f"must be the project of the forked job, which is {document['project']!r}"
        raise InvalidSpec([Problem("/patch/project", "not_your_project", detail, "leave it out")])
    place = {"job": start.job.id, "checkpoint": start.checkpoint.id, "mode": mode}
    return {**merged(document, patch), "resume_from": place}


def merged(target: Any, patch: Any) -> Any:
    """Merges a patch into a value by RFC 7396 and returns the result.

    Objects are merged member by member. A member that is null in the patch is removed. Any other value replaces.
    """
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def forked(start: StartCheckpoint, was_set: Mapping[str, Any], spec: JobSpec, mode: str) -> ForkOf:
    """Returns the differences between a job and its fork."""
    changes = list(_changes("", document_of(start.job), {**spec.as_json(), "resume_from": None}))
    breaks = dict(_breaks(changes, mode))
    if spec.training.lr_scheduler_type == "constant" and spec.optimizers is None and spec.code is None:
        breaks = {pointer: why for pointer, why in breaks.items() if pointer not in LENGTHS}
    for name, value in was_set.items():
        pointer = f"/training/{name}"
        if getattr(spec.training, name, value) == value:
            breaks.pop(pointer, None)
        elif pointer not in NEUTRAL:
            why = f"a command set it to {json.dumps(value)} in job {start.job.id}, and the fork uses the spec's value"
            breaks[pointer] = why
    return ForkOf(
        job=start.job.id,
        checkpoint=ForkPoint(id=start.checkpoint.id, step=start.checkpoint.step),
        mode=mode,
        changes=tuple(changes),
        exact=not breaks,
        breaks_exactness=tuple(Inexact(pointer=pointer, detail=why) for pointer, why in breaks.items()),
    )


def _changes(pointer: str, old_value: Any, new_value: Any) -> Iterator[SpecChange]:
    """Yields each value that differs between the two documents, with its pointer. A list counts as one value."""
    if isinstance(old_value, dict) and isinstance(new_value, dict) and (old_value or new_value):
        for name in [*old_value, *(name for name in new_value if name not in old_value)]:
            # A spec in SQL leaves out the training arguments that have their default.
            default = _defaults().get(name) if pointer == "/training" else None
            yield from _changes(pointer + pointer_to(name), old_value.get(name, default), new_value.get(name, default))
    elif old_value != new_value or isinstance(old_value, bool) is not isinstance(new_value, bool):
        yield SpecChange.model_validate({"pointer": pointer, "from": old_value, "to": new_value})


@cache
def _defaults() -> Json:
    return Seq2SeqTrainingArguments().to_dict()


def _breaks(changes: Sequence[SpecChange], mode: str) -> Iterator[tuple[str, str]]:
    """Yields (pointer, reason) for each change that makes the fork train differently from the old job."""
    if mode == "weights":
        text = "only the weights are taken: optimizer, schedule, position in the data and random numbers start again"
        yield "/resume_from/mode", text
    for change in changes:
        if not any(_is_below(change.pointer, place) for place in NEUTRAL):
            reasons = [why for beginning, why in WHY if _is_below(change.pointer, beginning)]
            yield change.pointer, reasons[0] if reasons else OTHER_CODE


def _is_below(pointer: str, place: str) -> bool:
    return pointer == place or pointer.startswith(place + "/")


def _some(pointers: Sequence[str]) -> str:
    return listing([pointer[:100] for pointer in pointers], MAX_NAMED)
