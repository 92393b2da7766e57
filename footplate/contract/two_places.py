"""Handles settings that a spec may give in `training`, by Hugging Face's name, or in a field of the spec's own.

For example, `training.report_to` and `report_to` are the same setting. A value that is only in `training` is copied to
the spec's own field, so that other code reads only that field. Two different values are a problem that names both.
"""

from __future__ import annotations

import json
from typing import Any

from footplate.contract.arguments.fsdp import options_of_words
from footplate.contract.errors import Problem
from footplate.contract.explain import kind_of
from footplate.contract.fields import Json
from footplate.contract.ids import is_id


def unite(document: Json, training: Json, origins: dict[str, str]) -> list[Problem]:
    """Fills the spec's own fields from `training`, and returns a problem for each contradiction.

    `origins` receives the pointer in `training` for each filled field, so that later problems name the user's field.
    """
    problems: list[Problem] = []
    for name, rule in _RULES.items():
        if training.get(name) is not None and (problem := rule(document, name, training[name], origins)):
            problems.append(problem)
    document["training"] = {name: value for name, value in training.items() if name not in _LEFT_TO_THE_SPEC}
    return problems


_LEFT_TO_THE_SPEC = ("resume_from_checkpoint", "fsdp", "fsdp_config", "deepspeed")
"""Arguments that are removed from `training`, because the spec's own field has their value."""


def _report_to(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    trackers = [value] if isinstance(value, str) else value
    if not isinstance(trackers, list) or not all(isinstance(tracker, str) for tracker in trackers):
        return None
    trackers = [tracker for tracker in trackers if tracker != "none"]
    own_value = document.get("report_to")
    if own_value is None:
        document["report_to"], origins["/report_to"] = trackers, f"/training/{name}"
    elif isinstance(own_value, list) and sorted(map(str, own_value)) != sorted(trackers):
        return _disagree(name, f"/report_to is {_short(own_value)}", trackers)
    return None


def _resume_from(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    if value is False:
        return None
    job, _, checkpoint = value.partition("/") if isinstance(value, str) else ("", "", "")
    if isinstance(value, str) and value.startswith(("data://", "models://")):
        place = {"path": value}
    elif is_id(job, "job"):
        place = {"job": job, "checkpoint": checkpoint or "latest"}
    else:
        return Problem(
            f"/training/{name}", "not_a_job",
            "names neither a job nor a folder under models:// or data://. A job needs no field to continue from its "
            "own checkpoints",
            'leave it out, or write "models://run/checkpoint-500", or /resume_from {"job": "job_…"}',
        )  # fmt: skip
    own_value = document.get("resume_from")
    if own_value is None:
        document["resume_from"], origins["/resume_from"] = place, f"/training/{name}"
    elif isinstance(own_value, dict) and _from(own_value) != _from(place):
        return _disagree(name, f"/resume_from is {_short(own_value)}", value)
    return None


def _from(place: Json) -> tuple[Any, ...]:
    return place.get("job"), place.get("checkpoint", "latest"), place.get("path")


def _fsdp(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    config = document["training"].get("fsdp_config") or {}
    if not value or not isinstance(config, dict):
        return None
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    if not (value is True or isinstance(value, str | list)) or not all(isinstance(word, str) for word in words):
        detail = f"is {kind_of(value)}, and true or false is needed"
        return Problem(f"/training/{name}", "wrong_type", detail, expected=("true or false",))
    try:
        options = {**options_of_words(words), **config}
    except ValueError as error:
        return Problem(f"/training/{name}", "unknown_choice", str(error)[:500])
    return _strategy(document, name, options, origins, argument="fsdp_config" if config else name)


def _fsdp_config(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    """Copies `fsdp_config` to `/resources/strategy` if `fsdp` is not set. If `fsdp` is set, `_fsdp` copies both."""
    if not isinstance(value, dict):
        return Problem(f"/training/{name}", "wrong_type", f"is {kind_of(value)}, an object is needed")
    # Files with Hugging Face's arguments contain an fsdp_config with empty values although FSDP is off.
    if document["training"].get("fsdp") or not any(value.values()):
        return None
    resources = document.get("resources")
    strategy = resources.get("strategy") if isinstance(resources, dict) else None
    if isinstance(strategy, dict) and strategy.get("type") == "fsdp":
        return _strategy(document, "fsdp", value, origins, argument=name)
    detail = "has options of FSDP, but neither /training/fsdp nor /resources/strategy turns FSDP on"
    return Problem(f"/training/{name}", "disagreement", detail, 'set "fsdp" to true')


def _deepspeed(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    if not value:
        return None
    if not isinstance(value, dict):
        hint = "write the file's content into the spec" if isinstance(value, str) else None
        return Problem(f"/training/{name}", "wrong_type", f"is {kind_of(value)}, an object is needed", hint)
    return _strategy(document, name, value, origins, argument=name)


def _strategy(document: Json, kind: str, config: Json, origins: dict[str, str], *, argument: str) -> Problem | None:
    resources = document.get("resources", {})
    if not isinstance(resources, dict):
        return None
    own_value, strategy = resources.get("strategy"), {"type": kind, "config": config}
    is_ours = isinstance(own_value, dict) and own_value.get("type") == kind
    if own_value is None or (is_ours and not own_value.get("config")):
        document["resources"] = {**resources, "strategy": strategy}
        origins["/resources/strategy/config"] = f"/training/{argument}"
        if own_value is None:
            origins["/resources/strategy/type"] = origins["/resources/strategy"] = f"/training/{kind}"
    elif isinstance(own_value, dict) and not (is_ours and config in ({}, own_value["config"])):
        return _disagree(argument, f"/resources/strategy is {_short(own_value)}", strategy)
    return None


def _optimizers(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    optimizers = document.get("optimizers")
    if not isinstance(optimizers, list):
        return None
    names = [entry.get("use") for entry in optimizers if isinstance(entry, dict)]
    return None if names == [value] else _disagree(name, f"/optimizers lists {len(optimizers)} optimizers", value)


def _do(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    field = {"do_train": "train", "do_eval": "eval", "do_predict": "test"}[name]
    data = document.get("data")
    if not isinstance(value, bool) or not isinstance(data, dict | None):
        return None
    is_set = bool(data and (data.get(field) or (field == "eval" and data.get("split"))))
    if value == is_set:
        return None
    place = f"/data/{field} is {'' if is_set else 'not '}set"
    return _disagree(name, place, value, hint=f"leave {name} out, because the fields of /data decide this")


def _disagree(name: str, place: str, value: Any, *, hint: str = "keep one of the two") -> Problem:
    return Problem(f"/training/{name}", "disagreement", f"says {_short(value)}, but {place}", hint)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


_RULES = {
    "report_to": _report_to,
    "resume_from_checkpoint": _resume_from,
    "fsdp": _fsdp,
    "fsdp_config": _fsdp_config,
    "deepspeed": _deepspeed,
    "optim": _optimizers,
    "do_train": _do,
    "do_eval": _do,
    "do_predict": _do,
}
