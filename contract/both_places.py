"""What may be said in `training`, by Hugging Face's name, and in the spec, in a place of its own.

Either is good. Said in `training` only, it is copied to its own place: whoever reads the spec looks in one. Said in
both and not the same, it is a problem that names both: nobody can know which was meant.
"""

from __future__ import annotations

import json
from typing import Any

from contract.errors import Problem
from contract.ids import is_id

Json = dict[str, Any]


def unite(document: Json, training: Json, origins: dict[str, str]) -> list[Problem]:
    """Fill the spec's own places from `training`, and say where the two disagree."""
    problems: list[Problem] = []
    for name, rule in _RULES.items():
        if training.get(name) is not None and (problem := rule(document, name, training[name], origins)):
            problems.append(problem)
    # The one of these that the arguments leave to the spec altogether.
    document["training"] = {name: value for name, value in training.items() if name != "resume_from_checkpoint"}
    return problems


def _report_to(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    trackers = [value] if isinstance(value, str) else value
    if not isinstance(trackers, list) or not all(isinstance(one, str) for one in trackers):
        return None
    trackers = [one for one in trackers if one != "none"]
    there = document.get("report_to")
    if there is None:
        document["report_to"], origins["/report_to"] = trackers, f"/training/{name}"
    elif isinstance(there, list) and sorted(map(str, there)) != sorted(trackers):
        return _disagree(name, f"/report_to is {_short(there)}", trackers)
    return None


def _resume_from(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    if value is False:
        return None
    job, _, checkpoint = value.partition("/") if isinstance(value, str) else ("", "", "")
    if isinstance(value, str) and value.startswith(("data://", "models://")):
        wanted = {"path": value}
    elif is_id(job, "job"):
        wanted = {"job": job, "checkpoint": checkpoint or "latest"}
    else:
        return Problem(
            f"/training/{name}", "not_a_job",
            "names neither a job nor a folder under models:// or data://: a new job has no checkpoint yet, and its "
            "further attempts continue from theirs anyway",
            'leave it out, or write "models://run/checkpoint-500", or /resume_from {"job": "job_…"}',
        )  # fmt: skip
    there = document.get("resume_from")
    if there is None:
        document["resume_from"], origins["/resume_from"] = wanted, f"/training/{name}"
    elif isinstance(there, dict) and _from(there) != _from(wanted):
        return _disagree(name, f"/resume_from is {_short(there)}", value)
    return None


def _from(place: Json) -> tuple[Any, ...]:
    return place.get("job"), place.get("checkpoint", "latest"), place.get("path")


def _strategy(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    if not value:
        return None
    training = document["training"]
    config = training.get("fsdp_config") if name == "fsdp" else value
    wanted = {"type": name, "config": {} if config is None or config is True else config}
    resources = document.get("resources", {})
    if not isinstance(resources, dict):
        return None
    there = resources.get("strategy")
    if there is None:
        document["resources"] = {**resources, "strategy": wanted}
        origins["/resources/strategy"] = f"/training/{name}"
    elif isinstance(there, dict) and {"config": {}, **there} not in (wanted, {**wanted, "config": {}}):
        return _disagree(name, f"/resources/strategy is {_short(there)}", wanted)
    return None


def _optimizers(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    there = document.get("optimizers")
    if not isinstance(there, list) or [one.get("use") for one in there if isinstance(one, dict)] == [value]:
        return None
    return _disagree(name, f"/optimizers lists {len(there)}", value)


def _do(document: Json, name: str, value: Any, origins: dict[str, str]) -> Problem | None:
    part = {"do_train": "train", "do_eval": "eval", "do_predict": "test"}[name]
    data = document.get("data")
    if not isinstance(value, bool) or not isinstance(data, dict | None):
        return None
    given = bool(data and data.get(part))
    return None if value == given else _disagree(name, f"/data/{part} is {'' if given else 'not '}given", value)


def _disagree(name: str, place: str, value: Any) -> Problem:
    return Problem(f"/training/{name}", "disagreement", f"says {_short(value)}, but {place}", "keep one of the two")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


_RULES = {
    "report_to": _report_to,
    "resume_from_checkpoint": _resume_from,
    "fsdp": _strategy,
    "deepspeed": _strategy,
    "optim": _optimizers,
    "do_train": _do,
    "do_eval": _do,
    "do_predict": _do,
}
