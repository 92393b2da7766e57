"""Reads the fields of stored specs. Their types are checked by mypy only, because lists read many specs.

No other code reads a field of a stored spec. A job that an earlier version has accepted can so be shown and ended even
if this version would refuse its spec. Code that needs a valid spec passes the result to `JobSpec.parse`.
"""

from __future__ import annotations

import json
from typing import Any, NotRequired, TypedDict


class StoredComponent(TypedDict, total=False):
    """A component, or the script of a `loop`."""

    use: str
    args: dict[str, Any]
    script: str


class StoredData(TypedDict):
    train: StoredComponent | None
    eval: dict[str, Any] | None
    map: list[StoredComponent]


class StoredTraining(TypedDict, total=False):
    """The training arguments of interest. Arguments with their default values are not stored."""

    greater_is_better: bool | None
    keep_best: int | None
    keep_last: int | None
    load_best_model_at_end: bool
    num_train_epochs: float
    per_device_train_batch_size: int
    save_only_model: bool
    save_total_limit: int | None
    seed: int


class StoredResources(TypedDict):
    gpus_per_node: int | None
    pool: str
    stall_limit: float | None


class StoredSpec(TypedDict):
    """The JSON of a `JobSpec` in its long form. Specs of an earlier version lack the fields that are not required."""

    name: str | None
    project: str
    tags: list[str]
    metadata: dict[str, Any]
    priority: int
    model: StoredComponent | None
    data: StoredData
    training: StoredTraining
    trainer: NotRequired[StoredComponent | None]
    loop: StoredComponent | None
    resources: StoredResources
    retry: dict[str, Any]
    resume_from: dict[str, Any] | None
    serve: NotRequired[dict[str, Any]]
    export: NotRequired[dict[str, Any]]


def read_spec(text: str) -> StoredSpec:
    spec: StoredSpec = json.loads(text)
    return spec


def is_session(spec: StoredSpec) -> bool:
    """Returns True for a job that answers requests instead of training."""
    return bool(spec.get("serve"))


def trains(spec: StoredSpec) -> bool:
    """Returns False for a job that serves or exports the checkpoint of another one."""
    return not (is_session(spec) or spec.get("export"))
