"""URLs that the service tells when jobs change their state. For who administers a project; with and without `await`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TypedDict, Unpack
from urllib.parse import quote

from footplate.sdk.models import Delivery, NewWebhook, Webhook
from footplate.sdk.request import Ask, ask, ask_json
from footplate.sdk.waiting import Wire, each, now

PAGE = 200


class WebhookChanges(TypedDict, total=False):
    """What is not named stays."""

    url: str
    states: Sequence[str] | None
    """None: every state."""
    tags: Sequence[str] | None
    """None: every job."""
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
    ) -> NewWebhook:
        """Tells `url` of jobs that come into these states and have any of these tags; without them, of all. The answer
        has the secret that signs, which is never shown again. Not sent twice: who loses the answer looks at `list`."""
        told = {"url": url, "states": states, "tags": tags, "description": description}
        body = {name: value for name, value in told.items() if value is not None}
        return NewWebhook.model_validate(await ask_json(self._wire, Ask.with_json("POST", "/webhooks", body)))

    async def list(self) -> Sequence[Webhook]:
        told = await ask_json(self._wire, Ask("GET", "/webhooks"))
        return [Webhook.model_validate(one) for one in told["data"]]

    async def get(self, webhook: str) -> Webhook:
        return Webhook.model_validate(await ask_json(self._wire, Ask("GET", _path(webhook))))

    async def update(self, webhook: str, **changes: Unpack[WebhookChanges]) -> Webhook:
        """Points it elsewhere, has it hear of something else, silences it, or has it told again."""
        what = Ask.with_json("PATCH", _path(webhook), changes, is_repeatable=True)
        return Webhook.model_validate(await ask_json(self._wire, what))

    async def rotate(self, webhook: str, *, overlap: float | str = "24h") -> NewWebhook:
        """Another secret, in the answer and never again. For so long the one before signs as well; 0 is for a secret
        that somebody else has seen."""
        what = Ask.with_json("POST", f"{_path(webhook)}/rotate", {"overlap": overlap})
        return NewWebhook.model_validate(await ask_json(self._wire, what))

    async def test(self, webhook: str) -> Delivery:
        """Sends a ping in a second or so; `deliveries` says what comes of it."""
        return Delivery.model_validate(await ask_json(self._wire, Ask("POST", f"{_path(webhook)}/test")))

    async def deliveries(self, webhook: str) -> AsyncGenerator[Delivery, None]:
        """What it was told and what came of it, newest first, page by page as they are asked for."""
        cursor = None
        while True:
            params = {"cursor": cursor, "limit": PAGE}
            page = await ask_json(self._wire, Ask("GET", f"{_path(webhook)}/deliveries", params=params))
            for one in page["data"]:
                yield Delivery.model_validate(one)
            if (cursor := page["next_cursor"]) is None:
                return

    async def delete(self, webhook: str) -> None:
        """And all that is known of what it was told."""
        await ask(self._wire, Ask("DELETE", _path(webhook)))


class Webhooks:
    """`hook = client.webhooks.create("https://…", states=["failed"])`, and its `hook.secret` once."""

    def __init__(self, webhooks: AsyncWebhooks) -> None:
        self._webhooks = webhooks

    def create(
        self,
        url: str,
        *,
        states: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        description: str | None = None,
    ) -> NewWebhook:
        """Tells `url` of jobs that come into these states and have any of these tags; without them, of all. The answer
        has the secret that signs, which is never shown again. Not sent twice: who loses the answer looks at `list`."""
        return now(self._webhooks.create(url, states=states, tags=tags, description=description))

    def list(self) -> Sequence[Webhook]:
        return now(self._webhooks.list())

    def get(self, webhook: str) -> Webhook:
        return now(self._webhooks.get(webhook))

    def update(self, webhook: str, **changes: Unpack[WebhookChanges]) -> Webhook:
        """Points it elsewhere, has it hear of something else, silences it, or has it told again."""
        return now(self._webhooks.update(webhook, **changes))

    def rotate(self, webhook: str, *, overlap: float | str = "24h") -> NewWebhook:
        """Another secret, in the answer and never again. For so long the one before signs as well; 0 is for a secret
        that somebody else has seen."""
        return now(self._webhooks.rotate(webhook, overlap=overlap))

    def test(self, webhook: str) -> Delivery:
        """Sends a ping in a second or so; `deliveries` says what comes of it."""
        return now(self._webhooks.test(webhook))

    def deliveries(self, webhook: str) -> Iterator[Delivery]:
        """What it was told and what came of it, newest first, page by page as they are asked for."""
        return each(self._webhooks.deliveries(webhook))

    def delete(self, webhook: str) -> None:
        """And all that is known of what it was told."""
        now(self._webhooks.delete(webhook))


def _path(webhook: str) -> str:
    return f"/webhooks/{quote(webhook, safe='')}"
