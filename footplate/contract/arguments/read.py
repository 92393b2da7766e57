"""Parses the field `training` of a spec into TrainingArguments. One error reports all problems."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from footplate.contract.arguments.argument_fields import GenerationFields
from footplate.contract.arguments.consistency import disagreements
from footplate.contract.arguments.not_supported import (
    CHOICES_NOT_YET,
    IN_SCRIPTS_ONLY,
    NOT_YET,
    OBJECTS_ONLY,
    SERVER_OWNED,
)
from footplate.contract.arguments.training import Seq2SeqTrainingArguments, TrainingArguments
from footplate.contract.body import pointer_to
from footplate.contract.errors import Problem, did_you_mean
from footplate.contract.explain import Path, explain, unique

FIELDS = tuple(field.name for field in dataclasses.fields(Seq2SeqTrainingArguments))
ARGUMENT_NAMES = frozenset({*FIELDS, *NOT_YET, *IN_SCRIPTS_ONLY, *SERVER_OWNED})
"""All argument names of Hugging Face's Trainer that are known. Others may be arguments of a library's trainer."""
_OF_GENERATION = {field.name: field.default for field in dataclasses.fields(GenerationFields)}
_OF_THE_STRATEGY = frozenset({"fsdp", "fsdp_config", "deepspeed"})
"""Arguments that short forms move to `resources.strategy`, unless their value is empty."""


OTHER_WORDS = {
    "lr": "learning_rate", "epochs": "num_train_epochs", "num_epochs": "num_train_epochs", "steps": "max_steps",
    "batch_size": "per_device_train_batch_size", "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size", "scheduler": "lr_scheduler_type", "optimizer": "optim",
    "grad_accum": "gradient_accumulation_steps", "accumulate_grad_batches": "gradient_accumulation_steps",
    "gradient_clip_val": "max_grad_norm", "clip_grad_norm": "max_grad_norm", "log_every_n_steps": "logging_steps",
    "save_every": "save_steps", "num_workers": "dataloader_num_workers", "wd": "weight_decay", "warmup": "warmup_steps",
}  # fmt: skip
"""The names that other trainers use for our arguments, for hints."""


def good_arguments(values: Mapping[str, object]) -> tuple[TrainingArguments, list[Problem]]:
    """Returns the arguments with all valid values, without converting types, and the problems of the other values."""
    problems: list[Problem] = []
    good_values: dict[str, Any] = {}
    for name, value in values.items():
        if refusal := _refused(name, value, pointer_to("training", name)):
            problems.append(refusal)
            continue
        if name not in FIELDS:
            # An unsupported argument with the value that changes nothing is accepted, and left out.
            continue
        try:
            good_values[name] = _adapters()[name].validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            problems += unique(explain(error, path=partial(_path_in, name)))
    bad_pointers = {problem.pointer for problem in problems}
    args = _unchecked(good_values)
    for clash in disagreements(args) if good_values else ():
        # A contradiction is reported only if all of its fields have valid values.
        if not any(f"/training/{name}" in bad_pointers for name in clash.fields):
            problems.append(Problem(f"/training/{clash.fields[0]}", "disagreement", clash.detail, clash.hint))
    vars(args)["stated_names"] = tuple(good_values)
    return args, problems


def _refused(name: str, value: object, at: str) -> Problem | None:
    """Returns the problem of an argument that is unknown or not supported in a job, or None."""
    if name in SERVER_OWNED and not (name in _OF_THE_STRATEGY and value in (None, [], "", False)):
        return Problem(at, "server_owned", f"{name} cannot be set here, because the server sets it", SERVER_OWNED[name])
    if name in NOT_YET:
        if NOT_YET[name].accepts(value):
            return None
        return Problem(at, "not_available_yet", f"{name} is not available yet", NOT_YET[name].instead)
    if name in IN_SCRIPTS_ONLY and not IN_SCRIPTS_ONLY[name].accepts(value):
        return Problem(at, "not_available_yet", f"{name} is not available in a job yet", IN_SCRIPTS_ONLY[name].instead)
    if name not in FIELDS and name not in IN_SCRIPTS_ONLY:
        short_name = name[:80]
        our_name = OTHER_WORDS.get(short_name)
        hint = (
            f"did you mean {our_name!r}?"
            if our_name
            else did_you_mean(short_name, FIELDS) or "GET /schema/job lists them all"
        )
        return Problem(at, "unknown_field", f"no training argument named {short_name!r}", hint)
    if name in OBJECTS_ONLY and isinstance(value, str):
        return Problem(at, "wrong_type", "is a string, an object is needed", OBJECTS_ONLY[name])
    declined_choices = CHOICES_NOT_YET.get(name, {})
    if isinstance(value, str) and value in declined_choices:
        return Problem(at, "not_available_yet", f"{name} {value} is not available yet", declined_choices[value])
    return None


def _path_in(name: str, path: Path) -> Path:
    """Returns the path of an error in an argument. Pydantic's own path also has names of types."""
    return ("training", name, *(part for part in path if isinstance(part, int)))


@functools.cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(Seq2SeqTrainingArguments, include_extras=True)
    return {name: TypeAdapter(hints[name], config=ConfigDict(allow_inf_nan=False)) for name in FIELDS}


@functools.cache
def _pristine(kind: type[TrainingArguments]) -> TrainingArguments:
    """Returns arguments with all defaults. The object is cached, and callers copy it."""
    return kind()


def _unchecked(values: Mapping[str, Any]) -> TrainingArguments:
    """Returns arguments with these values and all derived values, without checking the rules between arguments."""
    if not values:
        return copy.copy(_pristine(TrainingArguments))
    generates = any(values.get(name, default) != default for name, default in _OF_GENERATION.items())
    args = copy.copy(_pristine(Seq2SeqTrainingArguments if generates else TrainingArguments))
    for name, value in values.items():
        if generates or name not in _OF_GENERATION:
            setattr(args, name, value)
    args.__post_init__()
    return args
