"""The two clients: the same service, with and without `await`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2

from footplate.contract.events import Event
from footplate.sdk.blocking import Files, Jobs
from footplate.sdk.bundles import AsyncBundles, Bundles
from footplate.sdk.follow import follow
from footplate.sdk.follow_many import HasId, Positions
from footplate.sdk.jobs import AsyncJobs, JobView
from footplate.sdk.keys import AsyncKeys, Keys
from footplate.sdk.models import Component, Health, Node, QueuedJob
from footplate.sdk.notebook import plot
from footplate.sdk.request import Ask, ask_json, unreachable
from footplate.sdk.settings import http_arguments
from footplate.sdk.uploads import AsyncFiles
from footplate.sdk.waiting import AsyncWire, BlockingWire, OnBytes, Wire, each, now
from footplate.sdk.webhooks import AsyncWebhooks, Webhooks

Components = dict[str, dict[str, Component]]


class AsyncClient:
    """The client for asyncio: `async with AsyncClient() as client: job = await client.jobs.create(spec)`."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 4,
        patience: float = 600.0,
        on_bytes: OnBytes | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Reads FOOTPLATE_URL and FOOTPLATE_API_KEY if `url` and `api_key` are not given.

        `timeout` is for one answer. `retries` counts repetitions of requests that may safely be repeated. `patience` is
        the number of seconds after which a broken stream gives up. `on_bytes` is called with a file's name, the bytes
        so far and all its bytes, while files are sent and fetched.
        """
        arguments = http_arguments(url, api_key, timeout)
        self.url = str(arguments["base_url"])
        self._wire = AsyncWire(httpx2.AsyncClient(**arguments, transport=transport), retries + 1, on_bytes)
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
        """Yields events of many jobs on one connection, which is opened again after it breaks.

        The jobs are those in `jobs`, and those that match the filters now or later. Each job's events come once and in
        order. With `jobs` alone the stream ends with the last of them.
        """
        positions = Positions.of(jobs, tag=tag, state=state, kinds=kinds, max_hz=max_hz, patience=self._patience)
        return follow(self._wire, "/stream", positions)

    async def compare(self, jobs: Iterable[str | JobView], *names: str, x: str = "step", axes: Any = None) -> Any:
        """Draws curves of several jobs together with matplotlib, and returns the axes. Jobs may be ids or names."""
        return await compare(self.jobs, jobs, names, x, axes)

    async def nodes(self) -> list[Node]:
        return await nodes(self._wire)

    async def drain(self, node: str, *, drain: bool = True) -> Node:
        """Gives a node, by its id, no more work. Its attempts are saved and continue elsewhere. False undoes this."""
        return await drained(self._wire, node, drain)

    async def queue(self, job: str | None = None) -> list[QueuedJob]:
        """Returns the waiting jobs in the order in which they are tried, or one job's place."""
        return await queue(self._wire, job)

    async def components(self) -> Components:
        """Returns the components that a spec may name, by group and name. Empty until a node has announced them."""
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
    """The client: `job = Client().jobs.create({"model": "toy/mlp", "data": "toy/regression"})`."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 4,
        patience: float = 600.0,
        on_bytes: OnBytes | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """Takes the same arguments as AsyncClient, which describes them."""
        arguments = http_arguments(url, api_key, timeout)
        self.url = str(arguments["base_url"])
        self._wire = BlockingWire(httpx2.Client(**arguments, transport=transport), retries + 1, on_bytes)
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
        """Yields events of many jobs on one connection, which is opened again after it breaks.

        The jobs are those in `jobs`, and those that match the filters now or later. Each job's events come once and in
        order. With `jobs` alone the stream ends with the last of them.
        """
        positions = Positions.of(jobs, tag=tag, state=state, kinds=kinds, max_hz=max_hz, patience=self._patience)
        return each(follow(self._wire, "/stream", positions))

    def compare(self, jobs: Iterable[str | JobView], *names: str, x: str = "step", axes: Any = None) -> Any:
        """Draws curves of several jobs together with matplotlib, and returns the axes. Jobs may be ids or names."""
        return now(compare(self.jobs._jobs, jobs, names, x, axes))

    def nodes(self) -> list[Node]:
        return now(nodes(self._wire))

    def drain(self, node: str, *, drain: bool = True) -> Node:
        """Gives a node, by its id, no more work. Its attempts are saved and continue elsewhere. False undoes this."""
        return now(drained(self._wire, node, drain))

    def queue(self, job: str | None = None) -> list[QueuedJob]:
        """Returns the waiting jobs in the order in which they are tried, or one job's place."""
        return now(queue(self._wire, job))

    def components(self) -> Components:
        """Returns the components that a spec may name, by group and name. Empty until a node has announced them."""
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


async def compare(jobs: AsyncJobs, compared: Iterable[str | JobView], names: Collection[str], x: str, axes: Any) -> Any:
    chosen = [await jobs.get(job) if isinstance(job, str) else job for job in compared]
    curves = await jobs.series(chosen, *names, x=x)
    return plot(curves, {job.id: job.name or job.id for job in chosen}, x, axes)


async def nodes(wire: Wire) -> list[Node]:
    return [Node.model_validate(row) for row in (await ask_json(wire, Ask("GET", "/nodes")))["data"]]


async def drained(wire: Wire, node: str, drain: bool) -> Node:
    what = Ask.with_json("POST", f"/nodes/{quote(node, safe='')}/drain", {"drain": drain}, is_repeatable=True)
    return Node.model_validate(await ask_json(wire, what))


async def queue(wire: Wire, job: str | None) -> list[QueuedJob]:
    entries: list[QueuedJob] = []
    cursor: str | None = None
    while True:
        page = await ask_json(wire, Ask("GET", "/queue", params={"job": job, "cursor": cursor, "limit": 1000}))
        entries += [QueuedJob.model_validate(row) for row in page["data"]]
        if (cursor := page["next_cursor"]) is None:
            return entries


async def components(wire: Wire) -> Components:
    answer: dict[str, dict[str, Any]] = await ask_json(wire, Ask("GET", "/components"))
    return {
        group: {name: Component.model_validate(fields) for name, fields in members.items()}
        for group, members in answer.items()
    }


async def health(wire: Wire) -> Health:
    """Returns the service's health. An answer of 503 has it, too."""
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
