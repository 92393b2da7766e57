"""The service's own: nodes, problems, health, keys, webhooks."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from footplate.contract.fields import Told
from footplate.contract.lifecycle import Action, JobState
from service.api.shapes.shape import Json, Shape


class Node(Shape):
    id: str
    name: str
    state: Literal["up", "waiting", "draining", "lost"]
    takes_work: bool
    message: str | None
    """Why it gets no work now."""
    refused: str | None
    """Why it will get none as it is: its version, or a GPU that another node announces."""
    exposed: str | None
    """Why training, and so a bundle's code, has root's rights there; null: it has not."""
    pool: str
    slots: int
    slots_used: int
    gpus: list[Json]
    jobs: list[str]
    versions: Json
    catalogue_hash: str | None
    actions: list[str]
    first_seen_at: str
    seen_at: str


class NodeList(Shape):
    data: list[Node]
    next_cursor: str | None


class ProblemItem(Shape):
    pointer: str
    """RFC 6901, into the body; below /query for query parameters."""
    code: str
    detail: str
    hint: str | None = None


class ProblemDocument(Told):
    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    """Stable: programs may compare it."""
    request_id: str
    errors: list[ProblemItem]
    hint: str | None = None
    state: JobState | None = None
    """With 409: the job's state,"""
    allowed: list[Action] | None = None
    """and what it allows."""


class Health(Shape):
    status: Literal["ok", "degraded", "unavailable"]
    degraded: list[str] = Field(default_factory=list)
    details: Json = Field(default_factory=dict)


class Ticket(Shape):
    ticket: str
    expires_in_s: int


class Key(Shape):
    id: str
    prefix: str
    """How the key begins: enough to tell it from others, and no more."""
    name: str
    project: str
    scopes: list[str]
    created_at: str
    created_by: str | None
    expires_at: str | None
    last_used_at: str | None
    """To the minute."""


class KeyList(Shape):
    data: list[Key]
    next_cursor: str | None


class CreatedKey(Key):
    key: str
    """The key itself. It is kept as a hash, so this is the only time that anybody sees it."""


class Webhook(Shape):
    id: str
    project: str
    url: str
    states: list[JobState] | None
    """null: every state."""
    tags: list[str] | None
    """null: every job."""
    description: str | None
    enabled: bool
    disabled_at: str | None
    disabled_why: str | None
    """by hand; because it answered 410; or because nothing could be delivered for five days, or for so long that more
    than 10,000 deliveries waited."""
    failing_since: str | None
    """The first failure since the last success. null: it works, as far as anybody has seen."""
    old_secret_until: str | None
    """How long the secret before the last change signs as well. null: there was no change, or with no overlap."""
    created_at: str
    created_by: str | None


class WebhookList(Shape):
    data: list[Webhook]
    next_cursor: str | None


class CreatedWebhook(Webhook):
    secret: str
    """What its deliveries are signed with. It is not shown again."""


class Delivery(Shape):
    id: str
    """Its `webhook-id`, the same at every try."""
    type: str
    job: str | None
    """null: a ping."""
    status: Literal["pending", "delivered", "failed"]
    tries: int
    created_at: str
    tried_at: str | None
    next_try_at: str | None
    """null: there is none any more."""
    http_status: int | None
    """Of the last try. null: nobody answered."""
    answer: str | None
    """What the last answer said, cut after 500 characters."""
    error: str | None
    """Why the last try failed."""
    body: Json
    """What it says."""


class DeliveryList(Shape):
    data: list[Delivery]
    next_cursor: str | None
