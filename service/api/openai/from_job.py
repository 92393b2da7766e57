"""Converts a job, its events and its checkpoints to the objects of OpenAI's fine-tuning API.

For a job that came through `POST /jobs`, the method, files and hyperparameters are read from its spec.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from typing import Any

from footplate.contract.events import Kind
from footplate.contract.fields import Json
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState
from service.api.openai.model_names import model_name
from service.api.openai.models import FileObject, FineTuningJob, JobCheckpoint, JobError, JobEvent, ModelObject
from service.store.row_types import CheckpointRow, EventRow, FileRow, JobRow, loads
from service.store.stored_spec import read_spec

PURPOSE = "fine-tune"
"""The purpose of every file. Footplate stores no purposes, because every file holds rows to train on."""
SHOWN_KINDS = (Kind.STATE, Kind.LOG, Kind.EVAL, Kind.CHECKPOINT, Kind.NOTE)
STATUSES = {
    JobState.QUEUED: "queued",
    JobState.STARTING: "queued",
    JobState.RUNNING: "running",
    JobState.STOPPING: "running",
    JobState.PAUSED: "paused",
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}
METHODS = {"trl/dpo": "dpo", "trl/grpo": "reinforcement"}
_METRICS = {
    "loss": "train_loss",
    "train_loss": "mean_train_loss",
    "mean_token_accuracy": "train_mean_token_accuracy",
    "reward": "train_mean_reward",
    "eval_reward": "valid_mean_reward",
    "eval_loss": "valid_loss",
    "eval_mean_token_accuracy": "valid_mean_token_accuracy",
}
_FULL = {name: f"full_{name}" for name in ("valid_loss", "valid_mean_token_accuracy", "valid_mean_reward")}
"""OpenAI's names for metrics over the whole validation file. Every evaluation here covers the whole file."""
_NOT_IN_A_SUFFIX = re.compile(r"[^A-Za-z0-9_.-]+")
_TOKENS = ("num_tokens", "num_input_tokens_seen")
"""The metrics that count the tokens of the training. TRL's count, the first, begins at 0 in each attempt."""


def seconds(milliseconds: int) -> int:
    return milliseconds // 1000


def job(row: JobRow, now_ms: int) -> FineTuningJob:
    spec, tune = read_spec(row.spec), _tuning(row)
    method = tune["method"]
    return FineTuningJob(
        id=row.id,
        created_at=seconds(row.created_at),
        finished_at=None if row.finished_at is None else seconds(row.finished_at),
        estimated_finish=_estimate(row, now_ms),
        model=tune["model"],
        fine_tuned_model=name_of(row) if row.state is JobState.SUCCEEDED else None,
        organization_id=row.project,
        status=STATUSES[row.state],
        training_file=_file_of(spec["data"]["train"]) or "",
        validation_file=_file_of(spec["data"]["eval"]),
        result_files=[results_id(row.id)] if row.state is JobState.SUCCEEDED else [],
        trained_tokens=_tokens(row) if row.state.is_terminal else None,
        seed=spec["training"].get("seed", 42),
        method=method,
        hyperparameters=method[method["type"]]["hyperparameters"],
        integrations=tune["integrations"],
        metadata=metadata_of(row),
        error=_error(row),
    )


def metadata_of(row: JobRow) -> dict[str, str]:
    pairs = loads(row.job_metadata).items()
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in pairs}


def name_of(row: JobRow, step: int | None = None) -> str:
    """Returns the name of the model that a job trains, or of one of its checkpoints."""
    tune = _tuning(row)
    return model_name(tune["model"], row.project, _NOT_IN_A_SUFFIX.sub("-", tune["suffix"] or ""), row.id, step)


def base_of(row: JobRow) -> str:
    """Returns the name of the base model that a job trains."""
    return str(_tuning(row)["model"])


def model(row: JobRow, step: int | None = None) -> ModelObject:
    created_at = seconds(row.finished_at or row.created_at)
    return ModelObject(id=name_of(row, step=step), created=created_at, owned_by=row.project)


def results_id(job_id: JobId) -> str:
    """Returns the id of a job's results file, which each request makes from the job's events."""
    return f"results-{job_id}"


def file(row: FileRow) -> FileObject:
    return FileObject(
        id=row.id, bytes=row.bytes, created_at=seconds(row.created_at), filename=row.name, purpose=PURPOSE
    )


def checkpoint(row: CheckpointRow, owner: JobRow) -> JobCheckpoint:
    metrics = {**numbers(loads(row.metrics) or {}), "step": float(row.step)}
    return JobCheckpoint(
        id=row.id,
        created_at=seconds(row.created_at),
        fine_tuned_model_checkpoint=name_of(owner, step=row.step),
        fine_tuning_job_id=row.job_id,
        step_number=row.step,
        metrics=metrics,
    )


def event_no(job_id: JobId, text: str) -> int | None:
    """Returns the number in an event's id, or None if the text is not the id of an event of this job."""
    number = text.removeprefix(f"ftevent-{job_id.removeprefix('job_')}-")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


def event(row: EventRow, owner: JobRow) -> JobEvent:
    data = loads(row.data)
    created_at = int(datetime.fromisoformat(row.at).timestamp())
    level, message, event_data = _SENTENCES[Kind(row.kind)](row, data, owner)
    is_metrics = row.kind in (Kind.LOG, Kind.EVAL)
    return JobEvent(
        id=f"ftevent-{row.job_id.removeprefix('job_')}-{row.no}", created_at=created_at, level=level, message=message,
        type="metrics" if is_metrics else "message", data=event_data,
    )  # fmt: skip


def numbers(metrics: Json) -> dict[str, float]:
    """Returns the metrics that are numbers of 64 bits. A metric that OpenAI has, too, gets OpenAI's name."""
    named_metrics = {
        _METRICS.get(name, name): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }
    return named_metrics | {
        full_name: named_metrics[name] for name, full_name in _FULL.items() if name in named_metrics
    }


Sentence = tuple[Any, str, Json]


def _state(row: EventRow, data: Json, owner: JobRow) -> Sentence:
    state, cause = data["state"], data.get("message")
    if state == JobState.QUEUED and row.no == 1:
        return "info", f"Created fine-tuning job: {owner.id}", {}
    if state == JobState.SUCCEEDED:
        return "info", "The job has successfully completed", {"fine_tuned_model": name_of(owner)}
    level = "error" if state == JobState.FAILED else "info"
    text = _STATES.get(state, f"Fine-tuning job {state}")
    return level, f"{text}: {cause}" if cause else text, {"state": state, "reason": data.get("reason")}


_STATES = {
    JobState.QUEUED: "Moving job to queued state",
    JobState.STARTING: "Fine-tuning job placed on a node",
    JobState.RUNNING: "Fine-tuning job started",
    JobState.STOPPING: "Fine-tuning job stopping",
    JobState.PAUSED: "Fine-tuning job paused",
    JobState.FAILED: "The job failed",
    JobState.CANCELLED: "Fine-tuning job cancelled",
}


_LOSSES = {"train_loss": "training loss", "valid_loss": "validation loss"}
_REWARDS = {"train_mean_reward": "train mean reward", "valid_mean_reward": "validation mean reward"}
"""The metrics in the message of an event. With reinforcement learning the loss is always about 0, so the message has
the reward instead.
"""


def _metrics(row: EventRow, data: Json, owner: JobRow) -> Sentence:
    values = numbers(data)
    words = _REWARDS if values.keys() & _REWARDS.keys() else _LOSSES
    phrases = [f"{word}={values[name]:.2f}" for name, word in words.items() if name in values]
    total = (loads(owner.progress) or {}).get("max_steps")
    place = f"Step {row.step}/{total}" if total else f"Step {row.step}"
    text = ", ".join(phrases or [f"{name}={value:g}" for name, value in list(values.items())[:3]])
    return "info", f"{place}: {text}", {**values, "step": row.step, "total_steps": total}


def _checkpoint(row: EventRow, data: Json, owner: JobRow) -> Sentence:
    if data.get("status") == "committed":
        return "info", f"Checkpoint created at step {row.step}", {"step": row.step}
    return "warn", f"Checkpoint at step {row.step}: {data.get('message') or data.get('status')}", {"step": row.step}


def _note(row: EventRow, data: Json, owner: JobRow) -> Sentence:
    return "info", str(data.get("message") or data.get("text") or json.dumps(data)), data


_SENTENCES = {
    Kind.STATE: _state, Kind.LOG: _metrics, Kind.EVAL: _metrics, Kind.CHECKPOINT: _checkpoint, Kind.NOTE: _note,
}  # fmt: skip


def _tuning(row: JobRow) -> Json:
    """Returns the fields of the fine-tuning request. For a job of `POST /jobs`, they are read from its spec."""
    tune: Json | None = loads(row.fine_tune)
    if tune is not None:
        return tune
    spec = read_spec(row.spec)
    training, trainer = spec["training"], spec.get("trainer") or {}
    method = METHODS.get(trainer.get("use", ""), "supervised")
    hyperparameters = {
        "n_epochs": training.get("num_train_epochs", 3),
        "batch_size": training.get("per_device_train_batch_size", 8),
        "learning_rate_multiplier": 1.0,
    }
    component = spec["model"] or spec["loop"] or {}
    path = component.get("args", {}).get("path")
    return {
        "model": path or component.get("use") or component.get("script") or "",
        "suffix": spec["name"],
        "method": {"type": method, method: {"hyperparameters": hyperparameters}},
        "integrations": [],
    }


def _file_of(component: Any) -> str | None:
    """Returns the id or path of a dataset's first file, or the name of its component if it has no file."""
    if not isinstance(component, dict) or not component:
        return None
    if "use" not in component:
        return _file_of(next(iter(component.values())))
    arguments = component.get("args", {})
    paths = arguments.get("paths") or arguments.get("path") or component["use"]
    return str(paths[0] if isinstance(paths, list) else paths)


def _estimate(row: JobRow, now_ms: int) -> int | None:
    eta = (loads(row.progress) or {}).get("eta_s")
    return None if eta is None or row.state is not JobState.RUNNING else seconds(now_ms) + round(eta)


def _tokens(row: JobRow) -> int | None:
    metrics = loads(row.metrics) or {}
    names = _TOKENS if row.attempt <= 1 else _TOKENS[1:]
    return next((int(metrics[name]) for name in names if isinstance(metrics.get(name), int | float)), None)


def _error(row: JobRow) -> JobError | None:
    failure = loads(row.error)
    if failure is None or row.state is not JobState.FAILED:
        return None
    hint = f" ({failure['hint']})" if failure.get("hint") else ""
    return JobError(code=failure["code"], message=failure["message"] + hint)
