"""The job spec, which a user submits to describe a job. Specs are checked here, and other code relies on the check.

    accept(value)           checks the JSON of a request's body; returns the spec and where the user wrote each value
    JobSpec.parse(value)    does the same, but returns only the spec
    spec.as_json()          returns the effective spec: the long form with every default, which parses to an equal spec

A wrong spec raises InvalidSpec with every problem. Each problem has the pointer of the value that the user wrote.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import count, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, InstanceOf, JsonValue, ValidationError, field_serializer
from pydantic_core import PydanticCustomError

from footplate.contract.arguments import Seq2SeqTrainingArguments, TrainingArguments, changed, stated
from footplate.contract.arguments.read import good_arguments
from footplate.contract.body import MAX_DEPTH, MAX_PROBLEMS, is_nested, pointer_to
from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.explain import Path, explain, kind_of, unique
from footplate.contract.fields import Group, Many, ShortText, Slug, Whole
from footplate.contract.files import ArgumentText
from footplate.contract.machine import STRATEGIES, Resources, Retry
from footplate.contract.next_step import with_next_steps
from footplate.contract.references import UsedComponent, components_of, texts_of
from footplate.contract.rules import broken_rules
from footplate.contract.short_forms import LongForm, long_form
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

if TYPE_CHECKING:
    from footplate.contract.components import Catalogue

MAX_METADATA_BYTES = 16 * 1024
MAX_TRAINING_FIELDS = 300
"""The greatest number of training arguments in a spec, more than exist. Without this limit, searching for similar names
of 50,000 unknown ones would take seconds."""


def _small(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if value and len(json.dumps(value)) > MAX_METADATA_BYTES:
        raise PydanticCustomError("too_large", f"must be at most {MAX_METADATA_BYTES // 1024} KiB as JSON")
    return value


class JobSpec(Group):
    """The spec of one job. `{"model": "toy/mlp", "data": "toy/regression"}` is a complete spec."""

    name: ShortText | None = None
    """A name for people. Two jobs may have the same name."""
    project: Slug = "default"
    """The project that owns the job."""
    tags: Annotated[Many[ShortText], Field(max_length=32)] = ()
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
    """The datasets. A component or a path alone is the training set. Required unless `loop`, `serve` or `export` is
    given."""
    collator: Component | None = None
    """Makes a batch from samples. null takes the collator that fits the processor and the model."""
    loss: Component | None = None
    """The loss to train with. null takes the loss that the model computes itself."""
    metrics: Annotated[Many[Component], Field(max_length=64)] = ()
    """Metrics that each evaluation computes besides the loss."""
    compute_metrics: Component | None = None
    """A function of your own that gets all predictions at once, as in Hugging Face's Trainer. Without this function an
    evaluation does not keep its predictions in memory."""
    training: InstanceOf[TrainingArguments] = Field(default_factory=lambda: good_arguments({})[0])
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
    report_to: Annotated[Many[ShortText], Field(max_length=32)] = ()
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
    # An unset `serve` or `export` is left out of the JSON, because an older node refuses a spec with an unknown field.
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
        """The trainer of another library, with its own arguments. None for our Trainer and its subclasses."""
        return None if self.trainer is None or self.trainer.is_own else self.trainer

    @property
    def is_script(self) -> bool:
        """True if the job runs a script instead of the Trainer."""
        return isinstance(self.loop, Script)

    @cached_property
    def components(self) -> tuple[UsedComponent, ...]:
        """Every component that the spec names. The spec is walked once, and the result is kept."""
        return tuple(components_of(self))

    @cached_property
    def texts(self) -> tuple[ArgumentText, ...]:
        """Every text in the arguments of components, and the folder to resume from. The result is kept."""
        return tuple(texts_of(self))

    @classmethod
    def parse(cls, value: object, catalogue: Catalogue | None = None) -> JobSpec:
        """Returns the spec of short or long JSON. Raises InvalidSpec with every problem."""
        return accept(value, catalogue).spec

    def as_json(self) -> dict[str, Any]:
        """Returns the effective spec: the long form with every default.

        `training` has only what differs from its defaults.
        """
        return self.model_dump(mode="json")


@dataclass(frozen=True, slots=True)
class Accepted:
    """A valid spec, and the body that it was made from."""

    spec: JobSpec
    long: LongForm

    @property
    def body(self) -> dict[str, Any]:
        return self.long.body

    def refusal(self, problems: Iterable[Problem]) -> InvalidSpec:
        """Returns the error for problems that were found in the spec later, with pointers into the request body."""
        return InvalidSpec(with_next_steps(self.long.located(problems), self.body))


def accept(value: object, catalogue: Catalogue | None = None) -> Accepted:
    """Turns a body into a spec. Raises InvalidSpec with every problem.

    With a `catalogue`, the components that the spec names must be in it.
    """
    if not isinstance(value, dict):
        hint = 'for example {"model": "toy/mlp", "data": "toy/regression"}'
        raise InvalidSpec([Problem("", "wrong_type", f"is {kind_of(value)}, an object is needed", hint)])
    long = long_form(value)
    training, problems = _training(long.document.get("training", {}))
    document = {**long.document, "training": training}
    wrong_pointers = {problem.pointer for problem in problems}
    type_problems: list[Problem] = []
    spec: JobSpec | None
    try:
        spec = JobSpec.model_validate(document)
    except ValidationError as error:
        type_problems = list(explain(error, path=_without_tags, model_at=_model_at, elsewhere=_ELSEWHERE))
        # Rules are not checked if the answer already has as many problems as it may have, because that would take long.
        spec = None if len(type_problems) == MAX_PROBLEMS else _without_wrong_values(document, error, wrong_pointers)
    if spec is not None:
        problems += _outside_of(wrong_pointers, broken_rules(spec, wrong_pointers))
    reported = [*long.problems, *long.located([*problems, *type_problems])]
    if spec is not None and catalogue is not None:
        pointers = {problem.pointer for problem in reported}
        catalogue_problems = long.located(_outside_of(wrong_pointers, catalogue.problems(spec)))
        reported += [problem for problem in catalogue_problems if problem.pointer not in pointers]
    if spec is None or reported:
        raise InvalidSpec(with_next_steps(unique(reported), value))
    return Accepted(spec, long)


def _outside_of(wrong_pointers: Collection[str], problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yields the problems outside of the wrong values, which were left out of the checked spec.

    A problem inside of a wrong value may be false. For example, a field may be missing only because it was left out.
    """
    for problem in islice(problems, MAX_PROBLEMS):
        if not any(is_nested(problem.pointer, pointer) for pointer in wrong_pointers):
            yield problem


def _training(values: object) -> tuple[TrainingArguments, list[Problem]]:
    """Returns the arguments made of all good values, and the problems of the others."""
    if not isinstance(values, dict):
        problem = Problem("/training", "wrong_type", f"is {kind_of(values)}, an object is needed")
    elif len(values) > MAX_TRAINING_FIELDS:
        problem = Problem("/training", "too_long", f"must have at most {MAX_TRAINING_FIELDS} entries")
    else:
        return good_arguments(values)
    return good_arguments({})[0], [problem]


def _without_wrong_values(document: dict[str, Any], error: ValidationError, wrong_pointers: set[str]) -> JobSpec:
    """Returns the spec without its wrong values, so that other mistakes can be reported at the same time.

    Adds the pointer of each value that is left out to `wrong_pointers`. An object that lacks a required value is left
    out, too.
    """
    document = deepcopy(document)
    for tries in count():
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            path = _without_tags(detail["loc"])
            if detail["type"] != "extra_forbidden":
                path = _left_out_with(path[:-1] if detail["type"] == "missing" or path[-1] == "[key]" else path)
            _leave_out(document, path if tries < MAX_DEPTH else path[:1], wrong_pointers)
        try:
            return JobSpec.model_validate(document)
        except ValidationError as next_error:
            error = next_error
    raise AssertionError("unreachable")


def _left_out_with(path: Path) -> Path:
    """Returns the path of the value to leave out if the value at `path` is wrong.

    For an entry of a list, that is the whole list, unless `_STAND_INS` has a replacement for the entry.
    """
    index = next((number for number, key in enumerate(path) if isinstance(key, int)), None)
    return path if index is None else path[: index + 1] if path[:index] in _STAND_INS else path[:index]


def _leave_out(document: dict[str, Any], path: Path, wrong_pointers: set[str]) -> None:
    holder: Any = document
    for key in path[:-1]:
        holder = holder.get(key) if isinstance(holder, dict) else holder[int(key)]
        if not isinstance(holder, dict | list):
            return
    wrong_pointers.add(pointer_to(*path))
    if isinstance(holder, list):
        holder[int(path[-1])] = dict(_STAND_INS[path[:-1]])
    else:
        holder.pop(path[-1], None)


_COMPONENT = {"use": "left-out"}
_STAND_INS: dict[Path, dict[str, Any]] = {
    ("metrics",): _COMPONENT, ("callbacks",): _COMPONENT, ("data", "map"): _COMPONENT,
    ("optimizers",): {"id": "left-out", "params": [".*"], **_COMPONENT},
}  # fmt: skip
"""The value that replaces a wrong entry of each of these lists, so that the other entries keep their indexes."""


_TAGGED = {("data", "eval"): 2, ("resources", "strategy"): 2, ("loop",): 1}


def _without_tags(path: Path) -> Path:
    """Removes the names of union members from pydantic's path of an error, because they are not keys of the spec."""
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
    """Returns the pydantic model of the object at the path of an error."""
    if path[:1] == ("optimizers",):
        return Optimizer if len(path) == 2 else Schedule
    return _GROUPS.get(path, Component)


_ELSEWHERE = {
    **{field.name: f"/training/{field.name}" for field in fields(Seq2SeqTrainingArguments)},
    **{name: f"/resources/{name}" for name in Resources.model_fields},
    **{name: f"/retry/{name}" for name in Retry.model_fields},
    **{name: f"/data/{name}" for name in Data.model_fields},
}
"""The pointers of fields that users may write at the top of the spec by mistake, by name. Problems name the pointer."""
