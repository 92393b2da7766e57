"""Resources for operators of a service: nodes, problems, health, keys and webhooks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from footplate.contract.fields import DescribedModel, Json, OpenEnum, Page, Resource
from footplate.contract.lifecycle import Action, JobState

NodeState = Literal["up", "waiting", "draining", "lost"]


class Node(Resource):
    id: str
    name: str
    state: Annotated[str, OpenEnum(NodeState)]
    takes_work: bool
    message: str | None
    """The reason for which the node gets no work now. null if it takes work."""
    refused: str | None
    """The reason for which the node gets no work until it changes: its version, or a GPU that another node
    announces."""
    exposed: str | None
    """The reason for which training, and so a bundle's code, has root's rights on the node. null if it has none."""
    pool: str
    slots: int
    slots_used: int
    gpus: tuple[Json, ...]
    jobs: tuple[str, ...]
    versions: Json
    catalogue_hash: str | None
    actions: tuple[str, ...]
    """The actions on the node that this caller may do now: drain, undrain or remove."""
    first_seen_at: str
    seen_at: str


class NodeList(Page[Node]): ...


class ProblemItem(Resource):
    pointer: str
    """The place in the request's body, as an RFC 6901 pointer. Query parameters are below /query."""
    code: str
    detail: str
    hint: str | None = None


class ProblemDocument(DescribedModel):
    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    """The problem's code, which never changes, so that programs may compare it."""
    request_id: str
    errors: tuple[ProblemItem, ...]
    hint: str | None = None
    state: JobState | None = None
    """The job's state, with status 409."""
    allowed: tuple[Action, ...] | None = None
    """The actions that this state allows, with status 409."""


class Health(Resource):
    status: Annotated[str, OpenEnum(Literal["ok", "degraded", "unavailable"])]
    degraded: tuple[str, ...] = ()
    details: Json = Field(default_factory=dict)
    """A sentence for each entry of `degraded`."""


class Ticket(Resource):
    ticket: str
    expires_in_s: int


class Key(Resource):
    id: str
    prefix: str
    """The first characters of the key, which distinguish the key from others."""
    name: str
    project: str
    scopes: tuple[str, ...]
    created_at: str
    created_by: str | None
    expires_at: str | None
    last_used_at: str | None
    """The time of last use, to the minute."""


class KeyList(Page[Key]): ...


class CreatedKey(Key):
    key: str = Field(repr=False)
    """The key itself. The service keeps only a hash, so no other answer shows the key."""


class Webhook(Resource):
    """A URL that receives a request when jobs change their state."""

    id: str
    project: str
    url: str
    states: tuple[Annotated[str, OpenEnum(JobState)], ...] | None
    """The states that the webhook reports. null for every state."""
    tags: tuple[str, ...] | None
    """The tags of which a job must have one. null for every job."""
    description: str | None
    format: Annotated[str, OpenEnum(Literal["footplate", "openai"])] = "footplate"
    """The format of the deliveries. `openai` reports the end of jobs as OpenAI's API does."""
    enabled: bool
    disabled_at: str | None
    disabled_why: str | None
    """The reason for which the webhook was disabled: an operator, an answer of 410, five days without a delivery, or
    more than 10,000 waiting deliveries."""
    failing_since: str | None
    """The time of the first failure since the last success. null: the last delivery succeeded, or none was tried."""
    old_secret_until: str | None
    """The time until which the secret before the last change also signs. null if only the current secret signs."""
    created_at: str
    created_by: str | None


class WebhookList(Page[Webhook]): ...


class CreatedWebhook(Webhook):
    secret: str = Field(repr=False)
    """The secret that signs deliveries. No other answer shows it."""


class Delivery(Resource):
    """A request to a webhook, and its outcome."""

    id: str
    """The value of the header `webhook-id`, the same at every try."""
    type: str
    job: str | None
    """The job whose state changed. null: the delivery is a ping."""
    status: Annotated[str, OpenEnum(Literal["pending", "delivered", "failed"])]
    tries: int
    created_at: str
    tried_at: str | None
    next_try_at: str | None
    """The time of the next try, or null if there is none."""
    http_status: int | None
    """The status of the last answer. null: the last try got no answer."""
    answer: str | None
    """The body of the last answer, cut after 500 characters."""
    error: str | None
    """The error of the last try, or null if it succeeded."""
    body: Json
    """The JSON body of the request to the webhook."""


class DeliveryList(Page[Delivery]): ...
