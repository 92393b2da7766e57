"""The two clients: the same service, with and without `await`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Collection, Iterator
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2

from footplate.contract.events import Event
from footplate.sdk.blocking import Files, Jobs
from footplate.sdk.bundles import AsyncBundles, Bundles
from footplate.sdk.follow import follow
from footplate.sdk.follow_many import HasId, Places
from footplate.sdk.jobs import AsyncJobs
from footplate.sdk.keys import AsyncKeys, Keys
from footplate.sdk.models import Component, Health, Node, QueuedJob
from footplate.sdk.request import Ask, ask_json, unreachable
from footplate.sdk.settings import http_arguments
from footplate.sdk.uploads import AsyncFiles
from footplate.sdk.waiting import AsyncWire, BlockingWire, Wire, each, now
from footplate.sdk.webhooks import AsyncWebhooks, Webhooks

Components = dict[str, dict[str, Component]]


class AsyncClient:
    """`async with AsyncClient() as client: job = await client.jobs.create(spec)`"""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 4,
        patience: float = 600.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Without `url` and `api_key`, FOOTPLATE_URL and FOOTPLATE_API_KEY say them. `timeout` is for one answer,
        `retries` for what may safely be asked again, `patience` for the seconds that a broken stream goes on trying."""
        arguments = http_arguments(url, api_key, timeout)
        self.url = str(arguments["base_url"])
        self._wire = AsyncWire(httpx2.AsyncClient(**arguments, transport=transport), retries + 1)
        self._patience = patience
        self.jobs = AsyncJobs(self._wire, patience)
        self.files = AsyncFiles(self._wire)
        self.bundles = AsyncBundles(self._wire)
        self.keys = AsyncKeys(self._wire)
        self.webhooks = AsyncWebhooks(self._wire)

    def stream(
        self,
        jobs: Collection[str | HasId] | None = None,
        *,
        tag: str | None = None,
        state: str | Collection[str] | None = None,
        kinds: str | Collection[str] | None = None,
        max_hz: int | None = None,
    ) -> AsyncGenerator[Event, None]:
        """What happens to many jobs, on one connection that comes back by itself: to these, and to those that match,
        now or later. Each job's events come once and in order. With `jobs` alone it ends with the last of them."""
        places = Places.of(jobs, tag=tag, state=state, kinds=kinds, max_hz=max_hz, patience=self._patience)
        return follow(self._wire, "/stream", places)

    async def nodes(self) -> list[Node]:
        return await nodes(self._wire)

    async def drain(self, node: str, *, drain: bool = True) -> Node:
        """Gives a node, by its id, no more work; what it runs is saved and goes on elsewhere. False takes that back."""
        return await drained(self._wire, node, drain)

    async def queue(self, job: str | None = None) -> list[QueuedJob]:
        """What waits, in the order in which it is tried; or one job's place in it."""
        return await queue(self._wire, job)

    async def components(self) -> Components:
        """What a spec may name, by group and name. Empty until a node has told."""
        return await components(self._wire)

    async def health(self) -> Health:
        return await health(self._wire)

    async def close(self) -> None:
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Client:
    """`job = Client().jobs.create({"model": "toy/mlp", "data": "toy/regression"})`"""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 4,
        patience: float = 600.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """As AsyncClient, which says what each is for."""
        arguments = http_arguments(url, api_key, timeout)
        self.url = str(arguments["base_url"])
        self._wire = BlockingWire(httpx2.Client(**arguments, transport=transport), retries + 1)
        self._patience = patience
        self.jobs = Jobs(AsyncJobs(self._wire, patience))
        self.files = Files(AsyncFiles(self._wire))
        self.bundles = Bundles(AsyncBundles(self._wire))
        self.keys = Keys(AsyncKeys(self._wire))
        self.webhooks = Webhooks(AsyncWebhooks(self._wire))

    def stream(
        self,
        jobs: Collection[str | HasId] | None = None,
        *,
        tag: str | None = None,
        state: str | Collection[str] | None = None,
        kinds: str | Collection[str] | None = None,
        max_hz: int | None = None,
    ) -> Iterator[Event]:
        """What happens to many jobs, on one connection that comes back by itself: to these, and to those that match,
        now or later. Each job's events come once and in order. With `jobs` alone it ends with the last of them."""
        places = Places.of(jobs, tag=tag, state=state, kinds=kinds, max_hz=max_hz, patience=self._patience)
        return each(follow(self._wire, "/stream", places))

    def nodes(self) -> list[Node]:
        return now(nodes(self._wire))

    def drain(self, node: str, *, drain: bool = True) -> Node:
        """Gives a node, by its id, no more work; what it runs is saved and goes on elsewhere. False takes that back."""
        return now(drained(self._wire, node, drain))

    def queue(self, job: str | None = None) -> list[QueuedJob]:
        """What waits, in the order in which it is tried; or one job's place in it."""
        return now(queue(self._wire, job))

    def components(self) -> Components:
        """What a spec may name, by group and name. Empty until a node has told."""
        return now(components(self._wire))

    def health(self) -> Health:
        return now(health(self._wire))

    def close(self) -> None:
        now(self._wire.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def nodes(wire: Wire) -> list[Node]:
    return [Node.model_validate(one) for one in (await ask_json(wire, Ask("GET", "/nodes")))["data"]]


async def drained(wire: Wire, node: str, drain: bool) -> Node:
    what = Ask.with_json("POST", f"/nodes/{quote(node, safe='')}/drain", {"drain": drain}, is_repeatable=True)
    return Node.model_validate(await ask_json(wire, what))


async def queue(wire: Wire, job: str | None) -> list[QueuedJob]:
    found: list[QueuedJob] = []
    cursor: str | None = None
    while True:
        page = await ask_json(wire, Ask("GET", "/queue", params={"job": job, "cursor": cursor, "limit": 1000}))
        found += [QueuedJob.model_validate(one) for one in page["data"]]
        if (cursor := page["next_cursor"]) is None:
            return found


async def components(wire: Wire) -> Components:
    told: dict[str, dict[str, Any]] = await ask_json(wire, Ask("GET", "/components"))
    return {
        group: {name: Component.model_validate(one) for name, one in found.items()} for group, found in told.items()
    }


async def health(wire: Wire) -> Health:
    """How the service says that it is; 503 is an answer too."""
    request = Ask("GET", "/readyz").on(wire)
    try:
        answer = await wire.send(request)
        return Health.model_validate({**answer.json(), "clock_ahead_s": _clock_ahead(answer.headers.get("date"))})
    except (httpx2.TransportError, ValueError) as error:
        raise unreachable(request.url, error) from error


def _clock_ahead(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date or "").timestamp() + 0.5 - time.time()  # its seconds are cut off
    except ValueError:
        return None
