"""Turns a request of OpenAI's fine-tuning API into a job's spec, and problems of the spec into those of the request.

`RECIPES` says for each method what trains it here. An argument of training comes from the request, else from the base
model's entry in the operator's table, else from `RECIPES`.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from footplate.contract.components import Catalogue
from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.fields import Json
from footplate.contract.ids import FileId
from service.api.openai.models import (
    Dpo,
    DpoHyperparameters,
    Hyperparameters,
    NewFineTuningJob,
    Reinforcement,
    ReinforcementHyperparameters,
    Supervised,
)
from service.api.openai.rows import CheckedRows, Format
from service.base_models import PartialSpec


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training of one method: the trainer, its arguments, and the formats of rows that it takes."""

    trainer: str
    training: Json
    maps: Mapping[Format, tuple[Json | str, ...]]
    """The preprocessing steps (`data.map`) for each format of rows that the method takes."""
    batch_size: str = "per_device_train_batch_size"
    """The training argument that the hyperparameter `batch_size` sets."""
    chat_training: Json = field(default_factory=dict)
    """Further arguments of training for rows of the format `chat`."""


EVERY_RUN: Json = {
    "num_train_epochs": 3,
    "logging_steps": 1,
    "save_strategy": "epoch",
    "save_total_limit": 3,
}
"""The training arguments of every fine-tuning job. As at OpenAI, each step is logged, and the checkpoints of the last
three epochs stay.
"""
RECIPES: Mapping[str, Recipe] = {
    "supervised": Recipe(
        "trl/sft",
        {"learning_rate": 2e-5},
        {"chat": (), "completions": ()},
        chat_training={"assistant_only_loss": True},
    ),
    "dpo": Recipe("trl/dpo", {"learning_rate": 1e-6}, {"preference": ("openai/preferences",)}),
    # A micro-batch has all answers to one prompt, so a batch has one micro-batch for each prompt.
    "reinforcement": Recipe(
        "trl/grpo",
        {"learning_rate": 1e-6, "num_generations": 8},
        {"prompts": ({"use": "rename", "args": {"columns": {"messages": "prompt"}}},)},
        batch_size="gradient_accumulation_steps",
    ),
}
DEFAULT_BETA = 0.1
ROWS_PER_BATCH_ROW, LARGEST_BATCH = 500, 16
""""auto" batches have 0.2 % of the rows, between 1 and 16."""
GRADER = "method/reinforcement/grader"
PARAMETERS: Mapping[str, str] = {
    "/data/train": "training_file",
    "/data/eval": "validation_file",
    "/data": "training_file",
    "/model": "model",
    "/processor": "model",
    "/resume_from": "model",
    "/trainer/args/reward_funcs": GRADER,
    "/trainer": "method",
    "/code": GRADER,
    "/training/num_train_epochs": "hyperparameters/n_epochs",
    "/training/per_device_train_batch_size": "hyperparameters/batch_size",
    "/training/gradient_accumulation_steps": "hyperparameters/batch_size",
    "/training/beta": "hyperparameters/beta",
    "/training/eval_steps": "hyperparameters/eval_interval",
    "/training/learning_rate": "hyperparameters/learning_rate_multiplier",
    "/training/seed": "seed",
    "/training": "hyperparameters",
    "/env": "integrations",
    "/report_to": "integrations",
    "/name": "suffix",
    "/metadata": "metadata",
}
"""The parameter of the request that sets a field of the spec, by the field's pointer or the beginning of it. If several
entries match, the first counts.
"""


REWARD = "openai_reward:reward"
_REWARD_SOURCE = """\
from footplate.components.openai_rows import reward_of
from grader import grade

reward = reward_of(grade)
"""
_GRADE = re.compile(r"^(async\s+)?def\s+grade\s*\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TuningFile:
    id: FileId
    rows: CheckedRows


@dataclass(frozen=True, slots=True)
class Base:
    """The model to start from: its name, its partial spec, and the job if the model was fine-tuned here."""

    name: str
    partial_spec: PartialSpec
    resume_from: Json | None = None


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """The spec for a request, and the request's fields that only appear in answers of OpenAI's routes."""

    document: Json
    fine_tune: Json
    bundle: bytes | None = None
    """The grader's code, if there is one."""


def translate(
    body: NewFineTuningJob, base: Base, train: TuningFile, validation: TuningFile | None, catalogue: Catalogue | None
) -> TranslatedRequest:
    """Returns the spec for a request. Raises InvalidSpec for fields that are not supported here.

    `catalogue` has the components of all nodes, if they are known.
    """
    kind, method = _method(body)
    recipe = RECIPES[kind]
    for parameter, file in (("training_file", train), ("validation_file", validation)):
        if file is not None:
            _require_format(kind, recipe, file, parameter)
    if validation is not None and validation.rows.format != train.rows.format:
        detail = f"has rows of the format {validation.rows.format}, but the training file has {train.rows.format}"
        raise _refused("validation_file", "invalid_training_file", detail)
    entry = _for_trainer(recipe.trainer, base.partial_spec.get("training", {}), catalogue)
    training, resolved_values = _training(method.hyperparameters, recipe, entry, train.rows)
    if body.seed is not None:
        training |= {"seed": body.seed, "data_seed": body.seed}
    data: Json = {"train": _reader(train), "map": list(recipe.maps[train.rows.format])}
    if validation is not None:
        data["eval"] = _reader(validation)
        training.setdefault("eval_strategy", "epoch")
    elif "eval_interval" in resolved_values:
        detail = "needs a validation file, and the request names none"
        raise _refused("method/reinforcement/hyperparameters/eval_interval", "missing", detail, "add validation_file")
    document: Json = {**base.partial_spec, "data": data, "trainer": recipe.trainer}
    if body.suffix is not None:
        document["name"] = body.suffix
    if body.metadata:
        document["metadata"] = body.metadata
    if base.resume_from is not None:
        document["resume_from"] = base.resume_from
    for integration in body.integrations or ():
        document["report_to"] = [integration.type]
        wandb = integration.wandb
        training |= {"project": wandb.project} | ({"run_name": wandb.name} if wandb.name else {})
        variables = {"WANDB_ENTITY": wandb.entity, "WANDB_TAGS": ",".join(wandb.tags)}
        document["env"] = document.get("env", {}) | {name: value for name, value in variables.items() if value}
    document["training"] = training
    bundle = None
    if isinstance(method, Reinforcement):
        bundle = grader_bundle(method.grader.source, GRADER)
        document["code"] = {"bundle": sha256(bundle).hexdigest()}
        document["trainer"] = {"use": recipe.trainer, "args": {"reward_funcs": [REWARD]}}
    stated_fields = method.model_dump(mode="json", exclude={"hyperparameters"})
    fine_tune = {
        "model": base.name,
        "suffix": body.suffix,
        "method": {"type": kind, kind: {**stated_fields, "hyperparameters": resolved_values}},
        "integrations": [item.model_dump(mode="json") for item in body.integrations or ()],
    }
    return TranslatedRequest(document, fine_tune, bundle)


def in_the_request(problems: Iterable[Problem], body: NewFineTuningJob) -> list[Problem]:
    """Returns problems of the spec with pointers into the request."""
    group = "hyperparameters" if body.method is None else f"method/{body.method.type}/hyperparameters"
    problems_of_request = []
    for item in problems:
        matching = (name for place, name in PARAMETERS.items() if f"{item.pointer}/".startswith(f"{place}/"))
        # All other fields of the spec come from the base model's entry.
        parameter = next(matching, "model").replace("hyperparameters", group, 1)
        problems_of_request.append(Problem(f"/{parameter}", item.code, item.detail, item.hint))
    return problems_of_request


def grader_bundle(source: str, parameter: str) -> bytes:
    """Returns a zip with a grader as a job's reward function. Equal sources are equal bytes, and so one bundle.

    The source is not run here. Raises InvalidSpec if it has no function of the name that OpenAI calls. `parameter` is
    the place of the grader in the request.
    """
    match = _GRADE.search(source)
    if match is None or match[1] is not None:
        detail = "has no function grade(sample, item), which returns the reward of one answer"
        raise _refused(f"{parameter}/source", "missing", detail)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (("grader.py", source), ("openai_reward.py", _REWARD_SOURCE)):
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def _refused(parameter: str, code: str, detail: str, hint: str | None = None) -> InvalidSpec:
    return InvalidSpec([Problem(f"/{parameter}", code, detail, hint)])


def _method(body: NewFineTuningJob) -> tuple[str, Supervised | Dpo | Reinforcement]:
    """Returns the method of the request. A request with only the older field `hyperparameters` is supervised."""
    if body.method is None:
        return "supervised", Supervised(hyperparameters=body.hyperparameters or Hyperparameters())
    kind = body.method.type
    if body.hyperparameters is not None:
        hint = f"put them into method.{kind}.hyperparameters"
        detail = "cannot be sent together with method, of which it is the older form"
        raise _refused("hyperparameters", "two_places", detail, hint)
    for name in ("supervised", "dpo", "reinforcement"):
        if name != kind and getattr(body.method, name) is not None:
            detail = f"cannot be used, because method.type is {kind!r}"
            raise _refused(f"method/{name}", "not_its_type", detail, "leave it out")
    method = getattr(body.method, kind)
    if kind == "reinforcement" and method is None:
        detail, hint = "is missing, and method.type is 'reinforcement'", "add method.reinforcement with a grader"
        raise _refused("method/reinforcement", "missing", detail, hint)
    return kind, method or (Dpo() if kind == "dpo" else Supervised())


def _require_format(method: str, recipe: Recipe, file: TuningFile, parameter: str) -> None:
    if file.rows.format not in recipe.maps:
        detail = f"has rows of the format {file.rows.format}, and {method} needs {' or '.join(recipe.maps)}"
        fitting_methods = [name for name, other_recipe in RECIPES.items() if file.rows.format in other_recipe.maps]
        hint = f"method.type {fitting_methods[0]!r} trains on such rows" if fitting_methods else None
        raise _refused(parameter, "invalid_training_file", detail, hint)


def _reader(file: TuningFile) -> Json:
    return {"use": "files/jsonl", "args": {"paths": [file.id]}}


def _for_trainer(trainer: str, entry: Json, catalogue: Catalogue | None) -> Json:
    """Returns an entry's arguments of training, without those that only trainers of other methods have.

    One entry serves all methods, so it may have `num_generations`, which only reinforcement knows.
    """
    descriptions = {
        recipe.trainer: catalogue and catalogue.get("trainers", recipe.trainer) for recipe in RECIPES.values()
    }
    names = {name: set(item.args.get("properties", {})) for name, item in descriptions.items() if item}
    own_names = names.pop(trainer, None)
    other_names: set[str] = set() if own_names is None else set().union(*names.values()) - own_names
    return {name: value for name, value in entry.items() if name not in other_names}


def _training(hyperparameters: Hyperparameters, recipe: Recipe, entry: Json, rows: CheckedRows) -> tuple[Json, Json]:
    """Returns the training arguments, and the hyperparameters with a number in place of every "auto"."""
    format_training = recipe.chat_training if rows.format == "chat" else {}
    defaults = {**EVERY_RUN, **recipe.training, **format_training, **entry}
    automatic_size = min(max(rows.count // ROWS_PER_BATCH_ROW, 1), LARGEST_BATCH)
    epochs = hyperparameters.n_epochs or defaults["num_train_epochs"]
    batch = hyperparameters.batch_size or entry.get(recipe.batch_size) or automatic_size
    multiplier = hyperparameters.learning_rate_multiplier or 1.0
    training = {
        **defaults,
        "num_train_epochs": epochs,
        recipe.batch_size: batch,
        "learning_rate": defaults["learning_rate"] * multiplier,
    }
    if answers := training.get("num_generations"):
        training |= {"per_device_train_batch_size": answers, "per_device_eval_batch_size": answers}
    resolved_values = {"n_epochs": epochs, "batch_size": batch, "learning_rate_multiplier": multiplier}
    if isinstance(hyperparameters, DpoHyperparameters):
        resolved_values["beta"] = training["beta"] = hyperparameters.beta or defaults.get("beta", DEFAULT_BETA)
    if isinstance(hyperparameters, ReinforcementHyperparameters) and hyperparameters.eval_interval is not None:
        training |= {"eval_strategy": "steps", "eval_steps": hyperparameters.eval_interval}
        resolved_values["eval_interval"] = hyperparameters.eval_interval
    return training, resolved_values
