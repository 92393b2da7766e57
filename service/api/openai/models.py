"""Requests and answers of OpenAI's API for fine-tuning: https://platform.openai.com/docs/api-reference/fine-tuning.

Requests are strict, so that what cannot be done here is refused by its name. "auto" is read as None.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from footplate.contract.fields import Group, Many, ShortText, Slug, Whole, pattern
from service.api.webhooks import Url

T = TypeVar("T")
AUTO = "auto"
MOST_PARTS = 1000
"""The largest number of parts of an upload. An upload of OpenAI has at most 8 GB, which are 128 parts of 64 MB."""


Auto = BeforeValidator(lambda value: None if value == AUTO else value)
Epochs = Annotated[Annotated[Whole, Field(ge=1, le=50)] | None, Auto]
BatchSize = Annotated[Annotated[Whole, Field(ge=1, le=256)] | None, Auto]
Multiplier = Annotated[Annotated[float, Field(gt=0)] | None, Auto]


def _only_default(value: Any) -> None:
    if value not in (None, AUTO, "default"):
        raise PydanticCustomError("no_effect", "has no effect on training here: leave it out")


OnlyDefault = Annotated[None, BeforeValidator(_only_default)]
"""A hyperparameter that Footplate does not have. Only its default is accepted."""


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class Hyperparameters(Group):
    n_epochs: Epochs = None
    batch_size: BatchSize = None
    learning_rate_multiplier: Multiplier = None


class DpoHyperparameters(Hyperparameters):
    beta: Multiplier = None


class ReinforcementHyperparameters(Hyperparameters):
    eval_interval: Annotated[Annotated[Whole, Field(ge=1)] | None, Auto] = None
    compute_multiplier: OnlyDefault = None
    eval_samples: OnlyDefault = None
    reasoning_effort: OnlyDefault = None


class Supervised(Group):
    hyperparameters: Hyperparameters = Hyperparameters()


class Dpo(Group):
    hyperparameters: DpoHyperparameters = DpoHyperparameters()


class PythonGrader(Group):
    """A function `grade(sample, item)` that returns the reward of one answer."""

    type: Literal["python"]
    name: ShortText
    source: Annotated[str, Field(min_length=1, max_length=256 * 1024)]
    image_tag: None = None


def _is_python(grader: Any) -> Any:
    if isinstance(grader, dict) and grader.get("type") not in (None, "python"):
        sentence = "is a grader of type {type}, and only python graders are supported: write it as grade(sample, item)"
        raise PydanticCustomError("unknown_choice", sentence, {"type": repr(grader["type"])[:40]})
    return grader


Grader = Annotated[PythonGrader, BeforeValidator(_is_python)]


class Reinforcement(Group):
    grader: Grader
    hyperparameters: ReinforcementHyperparameters = ReinforcementHyperparameters()


class Method(Group):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None
    dpo: Dpo | None = None
    reinforcement: Reinforcement | None = None


class Wandb(Group):
    project: ShortText
    name: ShortText | None = None
    entity: ShortText | None = None
    tags: Annotated[Many[ShortText], Field(max_length=32)] = ()


class Integration(Group):
    type: Literal["wandb"]
    wandb: Wandb


class NewFineTuningJob(Group):
    """The body of `POST /v1/fine_tuning/jobs`."""

    model: Annotated[str, Field(min_length=1, max_length=400)]
    training_file: Annotated[str, Field(max_length=200)]
    validation_file: Annotated[str, Field(max_length=200)] | None = None
    method: Method | None = None
    hyperparameters: Hyperparameters | None = None
    """The older place of `method.supervised.hyperparameters`."""
    suffix: Annotated[Slug, Field(max_length=64)] | None = None
    seed: Annotated[Whole, Field(ge=0, lt=2**31)] | None = None
    integrations: Annotated[Many[Integration], Field(max_length=1)] | None = None
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None


class NewUpload(Group):
    """The body of `POST /v1/uploads`."""

    bytes: Annotated[Whole, Field(ge=1)]
    filename: Annotated[str, Field(min_length=1, max_length=200)]
    mime_type: Annotated[str, Field(max_length=200)]
    purpose: Annotated[str, Field(max_length=40)]


class CompletedUpload(Group):
    """The body of `POST /v1/uploads/{upload}/complete`."""

    part_ids: Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=MOST_PARTS)]
    md5: Annotated[str, pattern(r"^[0-9a-fA-F]{32}$", "must be an MD5, 32 hex digits", 32)] | None = None


EventType = Literal["fine_tuning.job.succeeded", "fine_tuning.job.failed", "fine_tuning.job.cancelled"]
EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)
Types = Annotated[Many[EventType], Field(min_length=1)]


class NewEndpoint(Group):
    """The body of `POST /v1/webhook_endpoints`."""

    url: Url
    name: ShortText
    event_types: Types


class EndpointChanges(Group):
    """The body of `POST /v1/webhook_endpoints/{webhook}`. A field that is left out does not change."""

    url: Url | None = None
    name: ShortText | None = None
    event_types: Types | None = None


class SecretRotation(Group):
    keep_old_secret_active_for_24_hours: bool = False


class EndpointTest(Group):
    """The body of `POST /v1/webhook_endpoints/{webhook}/test`."""

    event_type: EventType


class ListPage(BaseModel, Generic[T]):
    """A page of a list. The next page begins after its last id."""

    object: Literal["list"] = "list"
    data: list[T]
    has_more: bool = False
    first_id: str | None = None
    last_id: str | None = None

    @classmethod
    def of(cls, items: list[T], *, has_more: bool) -> ListPage[T]:
        ids = [getattr(item, "id", None) for item in items]
        return cls(data=items, has_more=has_more, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None)


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: None = None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class EventTypes(BaseModel):
    object: Literal["list"] = "list"
    data: tuple[str, ...] = EVENT_TYPES


class Endpoint(BaseModel):
    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    created_at: int
    name: str
    url: str
    event_types: list[str]


class EndpointWithSecret(Endpoint):
    signing_secret: str = Field(repr=False)


class EndpointTested(BaseModel):
    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: Literal[True] = True


class Deleted(BaseModel):
    id: str
    object: str
    deleted: Literal[True] = True


class UploadObject(BaseModel):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str
    file: FileObject | None = None


class UploadPart(BaseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class JobError(BaseModel):
    code: str
    message: str
    param: None = None


class FineTuningJob(BaseModel):
    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    model: str
    fine_tuned_model: str | None
    organization_id: str
    status: str
    training_file: str
    validation_file: str | None
    result_files: list[str]
    trained_tokens: int | None
    seed: int
    method: dict[str, Any]
    hyperparameters: dict[str, Any]
    integrations: list[dict[str, Any]]
    metadata: dict[str, Any]
    error: JobError | None


class JobEvent(BaseModel):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Any]


class JobCheckpoint(BaseModel):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    step_number: int
    metrics: dict[str, float]
