"""The models of a spec's nested objects: components, datasets, optimizers, bundles and others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, JsonValue, Tag, ValidationError
from pydantic_core import PydanticCustomError

from footplate.contract.errors import Problem
from footplate.contract.fields import DURATION, Group, Many, ShortText, Slug, Whole, pattern

ComponentName = Annotated[
    str,
    pattern(
        r"^[A-Za-z0-9][A-Za-z0-9_-]*(/[A-Za-z0-9][A-Za-z0-9_-]*){0,3}$|^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        "is not the name of a component: write 'name', 'registry/name' or, with code.bundle, 'module:Attr'. "
        "Nothing is imported by a dotted path",
        200,
    ),
]


class Component(Group):
    """A component by its name and arguments. The name alone is a component without arguments."""

    use: ComponentName
    """The component's registered name, or `module:Attr` inside the job's own code bundle."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """The component's arguments. `GET /components` lists the arguments of each component."""

    @property
    def is_own(self) -> bool:
        """True if the component is defined in the job's own code bundle."""
        return ":" in self.use


def is_component(value: object) -> bool:
    """Returns True if an argument of a component is itself a component in its long form."""
    try:
        Component.model_validate(value)
    except ValidationError:
        return False
    return True


EvalSets = Annotated[
    Annotated[Component, Tag("component")]
    | Annotated[dict[Slug, Component], Field(min_length=1, max_length=32), Tag("sets")],
    Discriminator(lambda value: "sets" if isinstance(value, dict) and "use" not in value else "component"),
]


def _share_or_count(value: float) -> float:
    if value >= 1 and not value.is_integer():
        raise PydanticCustomError(
            "bad_test_size", "must be a share of the rows between 0 and 1, such as 0.1, or a whole number of rows"
        )
    return value


class Split(Group):
    """Divides the training set: some rows are left out of training, and the job is evaluated on them.

    The same seed and number of rows always select the same rows, so every attempt and every fork leaves out the same
    rows.
    """

    test_size: Annotated[float, Field(gt=0), AfterValidator(_share_or_count)]
    """The share of the rows to evaluate on, such as 0.1. A value of 1 or more is a number of rows."""
    seed: Annotated[Whole, Field(ge=0, le=2**32 - 1)] = 42
    """The seed of the random choice of rows."""

    def held_out(self, rows: int) -> int:
        """Returns the number of rows to evaluate on. A share is rounded up to a number of rows."""
        return math.ceil(self.test_size * rows) if self.test_size < 1 else int(self.test_size)

    def problem(self, rows: int) -> Problem | None:
        """Returns a problem if no row is left to train on."""
        if (held_out := self.held_out(rows)) < rows:
            return None
        detail = f"data.split leaves out {held_out:,} of {rows:,} rows, but training and evaluation each need a row"
        hint = (
            "choose a smaller test_size, such as 0.1" if rows > 1 else "add rows, or name a data.eval instead of split"
        )
        return Problem("/data/split/test_size", "no_row_left", detail, hint)


STREAMED = ("files/csv", "files/jsonl", "files/parquet", "files/text", "hf/dataset")
"""Datasets that can be streamed row by row."""


class Data(Group):
    """The datasets for training, evaluation and prediction."""

    train: Component | None = None
    """The training set. A job without a training set only evaluates or predicts."""
    eval: EvalSets | None = None
    """The evaluation set, or several evaluation sets by name."""
    split: Split | None = None
    """Takes randomly chosen rows of the training set as the evaluation set, instead of `eval`."""
    test: Component | None = None
    """The test set. The job predicts its samples after training and writes the predictions to its outputs."""
    map: Annotated[Many[Component], Field(max_length=64)] = ()
    """Preprocessing steps, applied in this order to every dataset."""

    @property
    def is_empty(self) -> bool:
        return not (self.train or self.eval or self.split or self.test or self.map)

    @property
    def has_evaluation(self) -> bool:
        """True if there are rows to evaluate on."""
        return self.eval is not None or self.split is not None

    @property
    def is_streamed(self) -> bool:
        """True if the training set is read row by row, so that the number of its rows is not known."""
        return self.train is not None and self.train.use in STREAMED and self.train.args.get("streaming") is True

    def sets(self) -> Iterator[tuple[tuple[str, ...], Component]]:
        """Yields each dataset with its path, such as `("eval", "dev")`."""
        for name in ("train", "test", "eval"):
            if isinstance(dataset := getattr(self, name), Component):
                yield (name,), dataset
        for name, dataset in self.eval.items() if isinstance(self.eval, dict) else ():
            yield ("eval", name), dataset


class Schedule(Component):
    """The learning-rate schedule of one optimizer, by a name of Hugging Face or of `torch.optim.lr_scheduler`."""

    per: Literal["step", "epoch"] = "step"
    """The event after which the schedule advances: each step of its optimizer, or each epoch."""


_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]|\\[uUN]")


def _regex(text: str) -> str:
    r"""Refuses characters beyond ASCII, because `re` takes 0.3 s to compile 500 characters of `(?i)[\0-\uffff]`."""
    if _BEYOND_ASCII.search(text):
        raise PydanticCustomError("not_a_pattern", "must be ASCII, without \\u, \\U and \\N: write '.' instead")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise PydanticCustomError("not_a_pattern", "is not a regular expression: {why}", {"why": str(error)}) from error
    return text


class Optimizer(Group):
    """One of several optimizers, which updates some of the model's parameters."""

    id: Slug
    """The optimizer's name in logs. Each optimizer of a job needs a different name."""
    params: Annotated[
        Many[Annotated[str, Field(max_length=500), AfterValidator(_regex)]], Field(min_length=1, max_length=100)
    ]
    """Regular expressions that are searched in parameter names. Every trainable parameter must belong to exactly one
    optimizer."""
    use: ComponentName
    """The optimizer's component name, such as "adamw". `GET /components` lists all optimizers."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """The optimizer's arguments, for example {"lr": 1e-3}."""
    loss: (
        Annotated[str, pattern(r"^[A-Za-z]\w*$", "must be a key of the model's output, or a method's name", 200)] | None
    ) = None
    """A key of the model's output or a method of the model; null is the main loss. The gradients of this loss go to
    this optimizer's parameters only, and are computed after the step of the optimizer listed before."""
    schedule: Schedule | None = None
    """The learning-rate schedule, such as "cosine" or "StepLR". null keeps the rate constant."""
    every: Annotated[Whole, Field(ge=1)] = 1
    """The number of training steps from one step of this optimizer to its next."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """The largest gradient norm over this optimizer's parameters. null takes `training.max_grad_norm`."""


class Script(Group):
    """A script for `accelerate launch` or `torchrun`, run unchanged as `__main__`."""

    script: ShortText
    """The script's path inside the bundle."""
    argv: Annotated[Many[str], Field(max_length=1000)] = ()
    """The script's command-line arguments."""


def _is_script(value: Any) -> str:
    return "script" if isinstance(value, Script) or (isinstance(value, dict) and "script" in value) else "component"


Loop = Annotated[
    Annotated[Component, Tag("component")] | Annotated[Script, Tag("script")],
    Discriminator(_is_script),
]


class Bundle(Group):
    """A bundle of the user's own code."""

    bundle: Annotated[str, pattern(r"^[0-9a-f]{64}$", "must be the sha256 of a bundle, 64 hex digits", 64)]
    """The bundle's sha256, as `POST /bundles` returned it."""
    requires: Annotated[Many[ShortText], Field(max_length=100)] = ()
    """Python packages that the code needs, for example "einops>=0.8". The service compares them with the packages that
    nodes have. Nothing is installed."""


class Serve(Group):
    """The limits of a serving session, a job that answers requests with a checkpoint's model instead of training."""

    idle: Annotated[float, Field(gt=0, le=86_400), DURATION] = 300.0
    """The time without a request after which the session ends, so that its slot is free again. At most a day."""
    max_batch: Annotated[Whole, Field(ge=1, le=256)] = 8
    """The largest number of texts that the session generates at the same time, over all requests."""
    max_queue: Annotated[Whole, Field(ge=1, le=1024)] = 16
    """The largest number of requests that wait. Further requests are answered 429."""
    max_tokens: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1024
    """The largest number of tokens that one answer may have."""
    max_inputs: Annotated[Whole, Field(ge=1, le=10_000)] = 256
    """The largest number of rows or texts in one request."""


class Export(Group):
    """The options of an export, which writes a checkpoint's model and tokenizer to the job's outputs."""

    merge: bool = False
    """Merges the model's adapters into its weights, so that the model can be loaded without them."""
    card: Annotated[str, Field(max_length=100_000)] = ""
    """The text of the model card, README.md."""


CheckpointName = Annotated[
    str, pattern(r"^(latest|best|ckpt_[0-9a-f]{32})$", "must be 'latest', 'best' or a checkpoint's id", 37)
]
Mode = Literal["full", "weights"]


class ResumeFrom(Group):
    """The checkpoint that a new job starts from: one of another job, or a folder that a Trainer wrote."""

    job: Annotated[str, pattern(r"^job_[0-9a-f]{32}$", "must be a job's id: 'job_' and 32 hex digits", 36)] | None = (
        None
    )
    """The job that wrote the checkpoint. Both jobs belong to the same project."""
    checkpoint: CheckpointName = "latest"
    """A checkpoint of that job: "latest", "best" or an id. The stored spec has the id of the checkpoint that was the
    latest or best one when the job was accepted."""
    path: (
        Annotated[
            str, pattern(r"^(data|models)://[^\x00-\x1f\x7f]+$", "must be a folder under data:// or models://", 4096)
        ]
        | None
    ) = None
    """A checkpoint folder that transformers' Trainer or ours wrote. Replaces `job`."""
    mode: Mode = "full"
    """"full" also restores the optimizer, the schedule and the position in the data. "weights" restores only weights
    and begins at step 0. A job without training data always restores the weights alone."""
