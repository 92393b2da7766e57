"""Operations on webhooks: URLs to which the service sends a request when a job changes its state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, TypedDict, Unpack

from footplate.sdk.models import Delivery, NewWebhook, Webhook
from footplate.sdk.request import ApiRequest, all_resources, listed, path_segment, send, send_for
from footplate.sdk.wire import Wire


class WebhookChanges(TypedDict, total=False):
    """The changes of a webhook. Fields that are left out stay as they are."""

    url: str
    states: Sequence[str] | None
    """The states, or None for every state."""
    tags: Sequence[str] | None
    """The tags, or None for every job."""
    description: str | None
    enabled: bool


class AsyncWebhooks:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def create(
        self,
        url: str,
        *,
        states: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        description: str | None = None,
        format: Literal["footplate", "openai"] | None = None,
    ) -> NewWebhook:
        """Creates a webhook for jobs that reach one of these states and have one of these tags. None means all.

        With the format "openai" the webhook receives the end of jobs only, in the form of OpenAI's webhooks.
        Only this answer contains the secret that signs the requests. The request is not repeated. If its answer is
        lost, look for the webhook in `list`.
        """
        fields = {"url": url, "states": states, "tags": tags, "description": description, "format": format}
        body = {name: value for name, value in fields.items() if value is not None}
        return await send_for(NewWebhook, self._wire, ApiRequest.with_json("POST", "/webhooks", body))

    async def list(self) -> Sequence[Webhook]:
        return await all_resources(Webhook, self._wire, "/webhooks")

    async def get(self, webhook: str) -> Webhook:
        return await send_for(Webhook, self._wire, ApiRequest("GET", _path(webhook)))

    async def update(self, webhook: str, **changes: Unpack[WebhookChanges]) -> Webhook:
        """Changes the URL, the states, the tags or the description, or turns the webhook off or on."""
        request = ApiRequest.with_json("PATCH", _path(webhook), changes, is_repeatable=True)
        return await send_for(Webhook, self._wire, request)

    async def rotate(self, webhook: str, *, overlap: float | str = "24h") -> NewWebhook:
        """Creates another secret, which only this answer contains.

        The previous secret also signs for the time of `overlap`. Use 0 if somebody else has seen that secret.
        """
        request = ApiRequest.with_json("POST", f"{_path(webhook)}/rotate", {"overlap": overlap})
        return await send_for(NewWebhook, self._wire, request)

    async def test(self, webhook: str) -> Delivery:
        """Makes the service send a test request soon. `deliveries` has the result."""
        return await send_for(Delivery, self._wire, ApiRequest("POST", f"{_path(webhook)}/test"))

    def deliveries(self, webhook: str) -> AsyncGenerator[Delivery, None]:
        """Yields deliveries with their results, newest first. Pages are requested as they are needed."""
        return listed(Delivery, self._wire, f"{_path(webhook)}/deliveries")

    async def delete(self, webhook: str) -> None:
        """Deletes the webhook and its deliveries."""
        await send(self._wire, ApiRequest("DELETE", _path(webhook)))


def _path(webhook: str) -> str:
    return f"/webhooks/{path_segment(webhook, 'webhook')}"
