"""The job spec: what a user asks for. It is parsed here once and trusted from then on.

    read_spec(raw)          bytes of a body -> JobSpec
    JobSpec.parse(value)    the same from JSON already read
    spec.as_json()          the effective spec: long form, every default; parses back to an equal one
    job_schema()            JSON Schema of all of it, short forms included

A wrong spec raises one InvalidSpec with every problem, each at the place where the user wrote it.
"""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import islice
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, InstanceOf, JsonValue, ValidationError, field_serializer
from pydantic_core import PydanticCustomError

from footplate.contract.arguments import Seq2SeqTrainingArguments, TrainingArguments, changed, read_arguments, stated
from footplate.contract.body import MAX_PROBLEMS, read_json
from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.explain import Path, explain, kind_of, unique
from footplate.contract.fields import Group, Many, Slug, Text, Whole
from footplate.contract.machine import STRATEGIES, Resources, Retry
from footplate.contract.next_step import with_next_steps
from footplate.contract.rules import broken_rules
from footplate.contract.schema import with_short_forms
from footplate.contract.short_forms import long_form
from footplate.contract.spec_parts import (
    Bundle,
    Component,
    Data,
    Export,
    Loop,
    Optimizer,
    ResumeFrom,
    Schedule,
    Script,
    Serve,
    Split,
)

MAX_METADATA_BYTES = 16 * 1024
MAX_TRAINING_FIELDS = 300
"""More than there are names. Looking up the nearest name for each of 50,000 fields would take seconds."""


def _small(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if value and len(json.dumps(value)) > MAX_METADATA_BYTES:
        raise PydanticCustomError("too_large", f"must be at most {MAX_METADATA_BYTES // 1024} KiB as JSON")
    return value


class JobSpec(Group):
    """One training job. `{"model": "toy/mlp", "data": "toy/regression"}` is a whole one."""

    name: Text | None = None
    """A name for people. Two jobs may have the same name."""
    project: Slug = "default"
    """The project that owns the job."""
    tags: Annotated[Many[Text], Field(max_length=32)] = ()
    """Labels by which lists of jobs can be filtered."""
    metadata: Annotated[dict[str, JsonValue], AfterValidator(_small)] = Field(default_factory=dict)
    """Any JSON object. The service stores and returns the object, and never reads it. At most 16 KiB as JSON."""
    priority: Annotated[Whole, Field(ge=-100, le=100)] = 5
    """Jobs with a higher number start first. Among equal numbers, the job that was queued first starts first."""
    model: Component | None = None
    """The model to train. Required unless `loop` is given."""
    processor: Component | None = None
    """The tokenizer or image processor. null takes the one that belongs to the model."""
    data: Data = Data()
    """The datasets. A component or a path alone is the training set. Required unless there is `loop`, `serve` or
    `export`."""
    collator: Component | None = None
    """Makes a batch from samples. null takes the collator that fits the processor and the model."""
    loss: Component | None = None
    """The loss to train with. null takes the loss that the model computes itself."""
    metrics: Annotated[Many[Component], Field(max_length=64)] = ()
    """Metrics that each evaluation computes besides the loss."""
    compute_metrics: Component | None = None
    """A function of your own that gets all predictions at once, as in Hugging Face's Trainer. Without this function an
    evaluation does not keep its predictions in memory."""
    training: InstanceOf[TrainingArguments] = Field(default_factory=lambda: read_arguments({}))
    """Training arguments, under the names of Hugging Face's TrainingArguments."""
    optimizers: Annotated[Many[Optimizer], Field(min_length=1, max_length=32)] | None = None
    """Several optimizers, each with its own parameters, instead of the single optimizer of `training`."""
    callbacks: Annotated[Many[Component], Field(max_length=64)] = ()
    """Callbacks that the Trainer calls during training, such as early stopping."""
    trainer: Component | None = None
    """A trainer of a library, such as "trl/sft", or a subclass of `footplate.Trainer` in the bundle, as `module:Class`.
    null is Footplate's own Trainer."""
    loop: Loop | None = None
    """A training loop of your own in the bundle, as `module:function`, or a script. Runs instead of the Trainer."""
    final_eval: Literal["best", "last"] | None = None
    """An evaluation after training: of the "best" model, which needs `training.load_best_model_at_end`, or of the
    "last" one. The job's result has its metrics as `final`."""
    report_to: Annotated[Many[Text], Field(max_length=32)] = ()
    """Experiment trackers that receive the logs, for example "tensorboard"."""
    code: Bundle | None = None
    """A bundle of your own Python code. Other fields can then name its classes and functions."""
    env: Annotated[dict[Slug, Annotated[str, Field(max_length=4096)]], Field(max_length=100)] = Field(
        default_factory=dict
    )
    """Environment variables of the training process. The operator decides which variables a job may set."""
    secrets: Annotated[Many[Slug], Field(max_length=32)] = ()
    """Names of secrets that become environment variables. Their values are kept on the nodes."""
    resources: Resources = Resources()
    """The nodes, GPUs, processes and time limits of the job."""
    retry: Retry = Retry()
    """The rules for another attempt after a failed or lost one."""
    resume_from: ResumeFrom | None = None
    """The checkpoint of another job, or a folder, to start from."""
    # Left out if it is not set, because a node of an older version refuses a spec with an unknown field.
    serve: Annotated[Serve | None, Field(exclude_if=lambda serve: serve is None)] = None
    """Answers requests with the checkpoint of `resume_from` until none comes for a while. Such a job trains nothing.
    `POST /jobs/{job}/predict` and `POST /v1/chat/completions` make one when they need it."""
    export: Annotated[Export | None, Field(exclude_if=lambda export: export is None)] = None
    """Writes the checkpoint of `resume_from` to the outputs, for use elsewhere. Such a job trains nothing.
    `POST /jobs/{job}/export` makes one."""

    @field_serializer("training")
    def _only_what_was_changed(self, training: TrainingArguments) -> dict[str, Any]:
        return changed(training) if self.library_trainer is None else stated(training)

    @property
    def library_trainer(self) -> Component | None:
        """The registered trainer, which has arguments and defaults of its own. None for our Trainer and subclasses."""
        return None if self.trainer is None or self.trainer.is_own else self.trainer

    @classmethod
    def parse(cls, value: object) -> Self:
        """Returns the spec of short or long JSON. Raises InvalidSpec with every problem."""
        if not isinstance(value, dict):
            hint = 'for example {"model": "toy/mlp", "data": "toy/regression"}'
            raise InvalidSpec([Problem("", "wrong_type", f"is {kind_of(value)}, an object is needed", hint)])
        long = long_form(value)
        document = long.document
        problems: list[Problem] = []
        training = _training(document.get("training", {}), problems)
        violations = [*problems, *islice(broken_rules(document, training), MAX_PROBLEMS)]
        try:
            spec = cls.model_validate({**document, "training": training or TrainingArguments()})
        except ValidationError as error:
            violations += explain(error, path=_without_tags, model_at=_model_at, elsewhere=_ELSEWHERE)
        if violations or long.problems:
            located = [
                Problem(long.locate(violation.pointer), violation.code, violation.detail, violation.hint)
                for violation in violations
            ]
            raise InvalidSpec(with_next_steps(unique(long.problems + located), value))
        return spec

    def as_json(self) -> dict[str, Any]:
        """Returns the effective spec: the long form with every default.

        `training` has only what differs from its defaults.
        """
        return self.model_dump(mode="json")


def read_spec(raw: bytes) -> JobSpec:
    """Returns the spec of a request's body."""
    return JobSpec.parse(read_json(raw))


def _training(values: object, problems: list[Problem]) -> TrainingArguments | None:
    if not isinstance(values, dict):
        problems.append(Problem("/training", "wrong_type", f"is {kind_of(values)}, an object is needed"))
        return None
    if len(values) > MAX_TRAINING_FIELDS:
        problems.append(Problem("/training", "too_long", f"must have at most {MAX_TRAINING_FIELDS} entries"))
        return None
    try:
        return read_arguments(values, pointer="/training")
    except InvalidSpec as invalid:
        problems += invalid.problems
        return None


def job_schema() -> dict[str, Any]:
    """JSON Schema of a job, with every field's meaning, the short forms, and training's fields."""
    return with_short_forms(JobSpec.model_json_schema())


_TAGGED = {("data", "eval"): 2, ("resources", "strategy"): 2, ("loop",): 1}


def _without_tags(path: Path) -> Path:
    """Removes the names of union branches, which pydantic puts into a path, but the user did not write."""
    for place, length in _TAGGED.items():
        if path[:length] == place and len(path) > length:
            return (*place, *path[length + 1 :])
    return path


_GROUPS: dict[Path, type[Group]] = {
    (): JobSpec, ("data",): Data, ("data", "split"): Split, ("resources",): Resources, ("retry",): Retry,
    ("resume_from",): ResumeFrom,
    ("code",): Bundle, ("loop", "script"): Script, ("serve",): Serve, ("export",): Export,
    **{("resources", "strategy", name): strategy for name, strategy in STRATEGIES.items()},
}  # fmt: skip


def _model_at(path: Path) -> type[Group]:
    """Returns the model of the object at a path that pydantic reports."""
    if path[:1] == ("optimizers",):
        return Optimizer if len(path) == 2 else Schedule
    return _GROUPS.get(path, Component)


_ELSEWHERE = {
    **{field.name: f"/training/{field.name}" for field in fields(Seq2SeqTrainingArguments)},
    **{name: f"/resources/{name}" for name in Resources.model_fields},
    **{name: f"/retry/{name}" for name in Retry.model_fields},
    **{name: f"/data/{name}" for name in Data.model_fields},
}
