"""Turns the short forms of a spec into the long one. Nothing is validated here, and no component is imported.

    "model": "toy/mlp"                      -> {"use": "toy/mlp", "args": {}}
    "data": <component or path>             -> {"train": <component>}
    "data": {"eval": "data://x/dev.jsonl"}  -> a reader chosen by suffix, also for the id of an uploaded file
    "data": "hub://owner/name"              -> hf/dataset with "hub://datasets/owner/name"
    "strategy": "ddp"                       -> {"type": "ddp"}
    "strategy": {"type": "accelerate", …}   -> the fields with that meaning      (arguments/accelerate_config.py)
    "training": {"report_to": "wandb"}      -> "report_to": ["wandb"]            (two_places.py)
    "training": {"warmup_ratio": 0.1}       -> {"warmup_steps": 0.1}             (arguments/legacy.py)
    "training": {"max_length": 512}         -> an argument of "trainer": "trl/sft"

Problems are detected in the long form but reported at the place that the user wrote, which `LongForm.locate` returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from footplate.contract.arguments.accelerate_config import unfold
from footplate.contract.arguments.legacy import LEGACY, modernized
from footplate.contract.arguments.read import ARGUMENT_NAMES
from footplate.contract.body import keys_of, pointer_to
from footplate.contract.errors import Problem
from footplate.contract.fields import Json
from footplate.contract.hub import hub_name, is_hub_name, of_data
from footplate.contract.two_places import unite

Place = tuple[str | int, ...]
"""The keys and indexes that lead from the root of a spec to a value."""

READERS = {
    ".jsonl": "files/jsonl",
    ".csv": "files/csv",
    ".tsv": "files/csv",
    ".txt": "files/text",
    ".parquet": "files/parquet",
}
"""The component that reads a bare path, by the path's suffix."""

DATA_SUFFIXES = frozenset({*READERS, ".json", ".arrow", ".gz", ".zst", ".zip"})
"""Suffixes that make a name a file instead of a component."""

REWARDS = "reward_funcs"
"""The argument of a trainer that lists components of the group `rewards`."""

_SUFFIX = re.compile(r"\.[A-Za-z0-9]+$")


@dataclass(slots=True)
class LongForm:
    """A spec in long form, the problems of its short form, and the places where the user wrote each field."""

    body: Json
    document: Json
    problems: list[Problem] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    """Pointers of the long form with the places where the user wrote them, if these differ."""

    def locate(self, pointer: str) -> str:
        """Returns the pointer into the request body for a pointer into the long form.

        A value inside a short form gets the pointer of the short form: `/model/use` of `"model": "toy/mlp"` becomes
        `/model`. A field that the body lacks, such as `/data`, keeps its pointer.
        """
        for long_pointer, short_pointer in self.origins.items():
            if pointer == long_pointer or pointer.startswith(long_pointer + "/"):
                pointer = short_pointer + pointer[len(long_pointer) :]
                break
        node: Any = self.body
        nearest = ""
        for key in keys_of(pointer):
            if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            elif isinstance(node, dict):
                node = node.get(key)
            else:
                break
            nearest += pointer_to(key)
        return nearest

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """Returns the problems, with each pointer into the long form replaced by the one into the request body."""
        return [replace(problem, pointer=self.locate(problem.pointer)) for problem in problems]


def long_form(body: Json) -> LongForm:
    """Returns the spec with every short form replaced. The body itself is not changed."""
    long = LongForm(body, dict(body))
    document = long.document
    for name in ("model", "processor", "collator", "loss", "compute_metrics", "trainer", "loop"):
        if name in document:
            document[name] = _component(document[name])
    for name in ("metrics", "callbacks"):
        if isinstance(document.get(name), list):
            document[name] = [_component(item) for item in document[name]]
    if "data" in document:
        document["data"] = _data(document["data"], long)
    if isinstance(document.get("optimizers"), list):
        document["optimizers"] = [_optimizer(item) for item in document["optimizers"]]
    resources = document.get("resources")
    if isinstance(resources, dict) and isinstance(resources.get("strategy"), str):
        document["resources"] = {**resources, "strategy": {"type": resources["strategy"]}}
    long.problems += unfold(document, long.origins)
    training = document.get("training")
    if isinstance(training, dict):
        training = _modern(training, long)
        training = document["training"] = _without_arguments_of_a_library(training, long)
        long.problems += long.located(unite(document, training, long.origins))
    document |= _with_rewards(document.get("trainer"))
    return long


def _modern(training: Json, long: LongForm) -> Json:
    """Returns `training` with present names in place of older ones.

    Adds the problems of the older names to `long`, and their pointers, at which the user wrote the values.
    """
    modern = modernized(training)
    for name in modern.declined:
        detail, hint = f"{name} no longer exists, so its value cannot be applied", f"instead: {LEGACY[name].instead}"
        long.problems.append(Problem(f"/training/{name}", "not_available_yet", detail, hint))
    for name, detail in modern.clashes.items():
        long.problems.append(Problem(f"/training/{name}", "disagreement", detail, "keep one of the two"))
    for name, names in modern.mapped.items():
        long.origins |= {
            f"/training/{present_name}": f"/training/{name}" for present_name in names if present_name not in training
        }
    return modern.values


def _without_arguments_of_a_library(training: Json, long: LongForm) -> Json:
    """Moves arguments that only the config of a library's trainer has, such as TRL's `max_length`, to the trainer."""
    trainer = long.document.get("trainer")
    if not isinstance(trainer, dict) or not isinstance(use := trainer.get("use"), str) or ":" in use:
        return training
    if not isinstance(args := trainer.get("args", {}), dict):
        return training
    library_values = {name: value for name, value in training.items() if name not in ARGUMENT_NAMES}
    for name in library_values.keys() & args.keys():
        detail = f"{name} is set here and in /trainer/args"
        long.problems.append(Problem(f"/training{pointer_to(name)}", "disagreement", detail, "keep one of the two"))
    long.origins |= {f"/trainer/args{pointer_to(name)}": f"/training{pointer_to(name)}" for name in library_values}
    long.document["trainer"] = {**trainer, "args": {**args, **library_values}}
    return {name: value for name, value in training.items() if name in ARGUMENT_NAMES}


def _with_rewards(trainer: Any) -> Json:
    """Returns the trainer with its reward functions as components, or nothing if the trainer lists none."""
    args = trainer.get("args") if isinstance(trainer, dict) else None
    if not isinstance(args, dict) or REWARDS not in args:
        return {}
    rewards = args[REWARDS] if isinstance(args[REWARDS], list) else [args[REWARDS]]
    components = [{"args": {}, **reward} if isinstance(reward, dict) else reward for reward in map(_component, rewards)]
    return {"trainer": {**trainer, "args": {**args, REWARDS: components}}}


def _component(value: Any) -> Any:
    return {"use": value} if isinstance(value, str) else value


def _optimizer(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("schedule"), str):
        return {**value, "schedule": _component(value["schedule"])}
    return value


def _data(value: Any, long: LongForm) -> Any:
    if isinstance(value, str) or (isinstance(value, dict) and "use" in value):
        long.origins["/data/train"] = "/data"
        return {"train": _dataset(value, "/data/train", long)}
    if not isinstance(value, dict):
        return value
    data = dict(value)
    for name in ("train", "test", "eval"):
        if name in data:
            data[name] = _dataset(data[name], f"/data/{name}", long)
    if isinstance(data.get("eval"), dict) and "use" not in data["eval"]:
        data["eval"] = {
            name: _dataset(dataset, pointer_to("data", "eval", name), long) for name, dataset in data["eval"].items()
        }
    if isinstance(data.get("map"), list):
        data["map"] = [_component(item) for item in data["map"]]
    return data


def _dataset(value: Any, pointer: str, long: LongForm) -> Any:
    if isinstance(value, dict) and isinstance(value.get("args"), dict):
        return {**value, "args": of_data(value["args"])}
    if not isinstance(value, str):
        return value
    if not _is_path(value):
        return {"use": value}
    if is_hub_name(value):
        value = of_data(value, is_path=True)
        if _is_repository(value):
            return {"use": "hf/dataset", "args": {"path": value}}
    suffix = _suffix(value)
    if suffix not in READERS:
        suffixes = ", ".join(f"{suffix} ({name})" for suffix, name in READERS.items())
        kind = f"{suffix!r} files" if suffix else "a path without a suffix"
        long.problems.append(
            Problem(long.locate(pointer), "no_reader", f"there is no reader for {kind}; the readers are: {suffixes}")
        )
    return {"use": READERS.get(suffix, READERS[".jsonl"]), "args": {"paths": [value]}}


def _is_repository(name: str) -> bool:
    """Returns True if the name is a whole repository, not a file in it. The rules report a name that cannot be read."""
    try:
        return not hub_name(name).path
    except ValueError:
        return True


def _is_path(text: str) -> bool:
    return "://" in text or text.startswith(("/", "./", "../", "~")) or _suffix(text) in DATA_SUFFIXES


def _suffix(path: str) -> str:
    match = _SUFFIX.search(path)
    return match[0].lower() if match else ""
