"""The parts a spec is made of: components and what names them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, JsonValue, Tag
from pydantic_core import PydanticCustomError

from contract.fields import Group, Many, Slug, Text, Whole, pattern

ComponentName = Annotated[
    str,
    pattern(
        r"^[A-Za-z0-9][A-Za-z0-9_-]*(/[A-Za-z0-9][A-Za-z0-9_-]*){0,3}$|^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        "names no component: one is 'name', 'registry/name' or, with code.bundle, 'module:Attr'. "
        "Nothing is imported by a dotted path",
        200,
    ),
]
Code = Annotated[
    str,
    pattern(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", "must be 'module:Attr' inside the job's code bundle", 200),
]


class Component(Group):
    """Anything pluggable, by name and arguments; the name alone is a component without arguments."""

    use: ComponentName
    """A registered name such as `toy/mlp`, or `module:Attr` inside the job's own code bundle."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """What it is called with. GET /components says what each one takes."""


def _is_one(value: Any) -> str:
    return "sets" if isinstance(value, dict) and "use" not in value else "component"


EvalSets = Annotated[
    Annotated[Component, Tag("component")]
    | Annotated[dict[Slug, Component], Field(min_length=1, max_length=32), Tag("sets")],
    Discriminator(_is_one),
]


class Data(Group):
    """What is learned from, and what it is judged by."""

    train: Component | None = None
    """The training set. Without one, the job only evaluates or predicts."""
    eval: EvalSets | None = None
    """The evaluation set, or several by name (at most 32)."""
    test: Component | None = None
    """Predicted at the end, into the job's outputs."""
    map: Annotated[Many[Component], Field(max_length=64)] = ()
    """Applied in order to every set. At most 64."""


class Schedule(Component):
    """How one optimizer's learning rate moves: by one of Hugging Face's names, or torch.optim.lr_scheduler's."""

    per: Literal["step", "epoch"] = "step"
    """When it moves on: with each of its optimizer's steps, or with the epochs."""


_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]|\\[uUN]")


def _regex(text: str) -> str:
    """Refuses characters beyond ASCII, because `re` takes 0.3 s to compile 500 characters of `(?i)[\\0-\\uffff]`."""
    if _BEYOND_ASCII.search(text):
        raise PydanticCustomError("not_a_pattern", "must be ASCII, without \\u, \\U and \\N: '.' is any character")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise PydanticCustomError("not_a_pattern", "is no regular expression: {why}", {"why": str(error)}) from error
    return text


class Optimizer(Group):
    """One of several optimizers, with parameters of its own."""

    id: Slug
    """Its name in logs."""
    params: Annotated[
        Many[Annotated[str, Field(max_length=500), AfterValidator(_regex)]], Field(min_length=1, max_length=100)
    ]
    """Regular expressions, searched in parameter names. Every trainable parameter belongs to exactly one optimizer."""
    use: ComponentName
    """Which optimizer, such as "adamw"; GET /components lists them."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """What it is made with, for example {"lr": 1e-3}."""
    loss: Annotated[str, pattern(r"^[A-Za-z]\w*$", "must be a name: a key of the output, or a method", 200)] | None = (
        None
    )
    """A key of the model's output or a method of the model; null is the main loss. Gradients go to its own parameters
    only, after the step of the optimizer before it."""
    schedule: Schedule | None = None
    """Such as "cosine" or "StepLR"; null keeps the rate constant."""
    every: Annotated[Whole, Field(ge=1)] = 1
    """Steps every so many optimizer steps of the job."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest gradient norm of its parameters; null is training's max_grad_norm, over these alone."""


class Script(Group):
    """An unmodified `accelerate launch` or `torchrun` script, run as `__main__`."""

    script: Text
    """Its path inside the bundle."""
    argv: Annotated[Many[str], Field(max_length=1000)] = ()
    """Its arguments."""


def _is_script(value: Any) -> str:
    return "script" if isinstance(value, Script) or (isinstance(value, dict) and "script" in value) else "component"


Loop = Annotated[
    Annotated[Component, Tag("component")] | Annotated[Script, Tag("script")],
    Discriminator(_is_script),
]


class Bundle(Group):
    """The user's own code."""

    bundle: Annotated[str, pattern(r"^[0-9a-f]{64}$", "must be the sha256 of a bundle, 64 hex digits", 64)]
    """What POST /bundles answered."""
    requires: Annotated[Many[Text], Field(max_length=100)] = ()
    """Packages it needs, for example "einops>=0.8"; checked against what nodes announce."""


CheckpointName = Annotated[
    str, pattern(r"^(latest|best|ckpt_[0-9a-f]{32})$", "must be 'latest', 'best' or a checkpoint's id", 37)
]
Mode = Literal["full", "weights"]


class ResumeFrom(Group):
    """Where to start instead of from nothing: a checkpoint of another job, or a folder that a Trainer wrote."""

    job: Annotated[str, pattern(r"^job_[0-9a-f]{32}$", "must be a job's id: 'job_' and 32 hex digits", 36)] | None = (
        None
    )
    """The job that made the checkpoint; of the same project."""
    checkpoint: CheckpointName = "latest"
    """"latest", "best" or a checkpoint's id. The effective spec has the id of what it was when the job was accepted."""
    path: (
        Annotated[
            str, pattern(r"^(data|models)://[^\x00-\x1f\x7f]+$", "must be a folder under data:// or models://", 4096)
        ]
        | None
    ) = None
    """Instead of a job: a folder that transformers' Trainer or ours wrote, such as "models://run/checkpoint-500"."""
    mode: Mode = "full"
    """Continue with optimizer, schedule and position, or take the weights alone; without training data always these."""
