"""The base models of `/v1`: for each model name of OpenAI's API, the model that is trained here instead.

The operator keeps them in a JSON file, which FOOTPLATE_OPENAI_MODELS names:

    {"gpt-4o-mini": "models://qwen2.5-0.5b",
     "gpt-4.1": {"model": {"use": "hf/causal-lm", "args": {"path": "hub://owner/name", "peft": {"r": 16}}},
                 "training": {"learning_rate": 2e-4, "bf16": true}, "resources": {"gpus_per_node": 1}}}

An entry is a path or a partial spec. Training arguments of the partial spec are used where a request says "auto".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from footplate.contract.errors import InvalidSpec
from footplate.contract.spec import JobSpec

ROOTS = ("models://", "hub://")
"""Names that begin like this are paths of models, and need no entry."""
SET_BY_THE_REQUEST = frozenset(
    {"name", "project", "data", "metadata", "report_to", "resume_from", "loop", "trainer", "code"}
)
"""Fields of a spec that an entry cannot have, because each request sets them."""

PartialSpec = dict[str, Any]
"""Some fields of a job's spec."""


def read_table(path: Path) -> dict[str, PartialSpec]:
    """Reads the operator's file. Returns a partial spec for each name. Raises ValueError for the operator."""
    try:
        table = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise ValueError(f'{path} must hold an object, such as {{"gpt-4o-mini": "models://qwen2.5-0.5b"}}')
    return {name: _checked(name, entry) for name, entry in table.items()}


def find(table: Mapping[str, PartialSpec], name: str) -> PartialSpec | None:
    """Returns the partial spec for a base model, or None if the name is neither in the table nor a path."""
    return table.get(name) or (model_at(name) if name.startswith(ROOTS) else None)


def model_at(path: str) -> PartialSpec:
    return {"model": {"use": "hf/causal-lm", "args": {"path": path}}}


def _checked(name: str, entry: object) -> PartialSpec:
    partial = model_at(entry) if isinstance(entry, str) else entry
    if not isinstance(partial, dict) or "model" not in partial:
        raise ValueError(f'{name!r} must be a path, or a partial spec with "model"')
    if wrong := sorted(SET_BY_THE_REQUEST & partial.keys()):
        raise ValueError(f"{name!r} must not have {', '.join(wrong)}, because each request sets that")
    try:
        # With a library trainer, unknown training arguments count as arguments of the library's config. They are
        # checked by the nodes' catalogue when a job is submitted.
        JobSpec.parse({"trainer": "trl/sft", **partial, "data": "data://rows.jsonl"})
    except InvalidSpec as invalid:
        raise ValueError(f"{name!r} is not a valid partial spec: {invalid.message}") from invalid
    return partial
