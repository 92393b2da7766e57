"""`Client` and `AsyncClient`, which have the same operations, without and with `await`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Collection, Iterable
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self

import httpx2

from footplate.contract.components import Catalogue
from footplate.contract.events import Event
from footplate.sdk.blocking import Blocking, Bundles, Files, Jobs, Keys, Webhooks, waits, yields
from footplate.sdk.bundles import AsyncBundles
from footplate.sdk.follow import comma_separated, follow
from footplate.sdk.follow_many import EventPositions
from footplate.sdk.jobs import AsyncJobs, JobView
from footplate.sdk.keys import AsyncKeys
from footplate.sdk.models import Component, Health, JobInfo, Node, QueuedJob
from footplate.sdk.notebook import plot
from footplate.sdk.request import (
    ApiRequest,
    all_resources,
    json_object,
    path_segment,
    read,
    send,
    send_for,
    unreachable,
)
from footplate.sdk.settings import http_arguments, open_http_client
from footplate.sdk.uploads import AsyncFiles
from footplate.sdk.webhooks import AsyncWebhooks
from footplate.sdk.wire import AsyncWire, BlockingWire, OnBytes, Wire


class Operations:
    """The operations of a client, as coroutines. `AsyncClient` inherits them, and `Client` calls them."""

    def __init__(self, wire: Wire, url: str, patience: float) -> None:
        self.url = url
        self._wire, self._patience = wire, patience
        self.jobs = AsyncJobs(wire, patience)
        self.files = AsyncFiles(wire)
        self.bundles = AsyncBundles(wire)
        self.keys = AsyncKeys(wire)
        self.webhooks = AsyncWebhooks(wire)

    def stream(
        self,
        jobs: Collection[str | JobView | JobInfo] | None = None,
        *,
        tag: str | None = None,
        state: str | Collection[str] | None = None,
        kinds: str | Collection[str] | None = None,
        max_hz: int | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yields events of many jobs on one connection, which is opened again after it breaks.

        The jobs are those in `jobs`, and those that match the filters now or later. Each job's events come once and in
        order. Without filters, the stream ends when all `jobs` have ended.
        """
        cursors = {job if isinstance(job, str) else job.id: 0 for job in jobs or ()}
        filters = {"tag": tag, "state": comma_separated(state), "kinds": comma_separated(kinds), "max_hz": max_hz}
        follows_more = jobs is None or tag is not None or state is not None
        positions = EventPositions(cursors=cursors, filters=filters, follows_more=follows_more, patience=self._patience)
        if not (cursors or follows_more):
            positions.end = "all"  # The service streams every job if no job is named.
        return follow(self._wire, "/stream", positions)

    async def compare(
        self,
        jobs: Iterable[str | JobView],
        *names: str,
        x: str = "step",
        axes: Any = None,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Any:
        """Draws curves of several jobs together with matplotlib, and returns the axes. Jobs may be ids or names."""
        chosen_jobs = [await self.jobs.get(job) if isinstance(job, str) else job for job in jobs]
        curves = await self.jobs.series(chosen_jobs, *names, x=x, first_step=first_step, last_step=last_step)
        return plot(curves, {job.id: job.name or job.id for job in chosen_jobs}, x, axes)

    async def nodes(self) -> list[Node]:
        return await all_resources(Node, self._wire, "/nodes")

    async def drain(self, node: str, *, drain: bool = True) -> Node:
        """Drains a node: its attempts save and continue on other nodes, and no more start there. False undoes this."""
        path = f"/nodes/{path_segment(node, 'node')}/drain"
        request = ApiRequest.with_json("POST", path, {"drain": drain}, is_repeatable=True)
        return await send_for(Node, self._wire, request)

    async def remove_node(self, node: str) -> None:
        """Removes a lost node from the list. If the node sends a heartbeat, it is listed again and gets work."""
        await send(self._wire, ApiRequest("DELETE", f"/nodes/{path_segment(node, 'node')}"))

    async def queue(self, job: str | None = None) -> list[QueuedJob]:
        """Returns the queued jobs in the order in which the service tries to start them, or only the entry of `job`."""
        return await all_resources(QueuedJob, self._wire, "/queue", job=job, limit=1000)

    async def components(self) -> dict[str, dict[str, Component]]:
        """Returns the components that a spec may name, by group and name. Empty until a node has announced them."""
        return (await send_for(Catalogue, self._wire, ApiRequest("GET", "/components"))).root

    async def health(self) -> Health:
        """Returns the service's health, which an answer with the status 503 also contains."""
        request = ApiRequest("GET", "/readyz").http_request(self._wire)
        try:
            answer = await self._wire.send(request)
        except httpx2.TransportError as error:
            raise unreachable(request.url, error) from error
        return read(Health, {**json_object(answer), "clock_ahead_s": _clock_ahead(answer.headers.get("date"))})

    async def close(self) -> None:
        await self._wire.close()


class AsyncClient(Operations):
    """The client for asyncio: `async with AsyncClient() as client: job = await client.jobs.create(spec)`."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        project: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        patience: float = 600.0,
        on_bytes: OnBytes | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Reads FOOTPLATE_URL and FOOTPLATE_API_KEY if `url` and `api_key` are not given.

        A key that is valid for every project acts in `project`, or in "default" if that is not given. `timeout` is the
        time in seconds for one answer. `retries` is the number of repetitions of a request that may safely be repeated.
        `patience` is the number of seconds for which a broken stream tries to connect again. `on_bytes` is called
        during uploads and downloads with a file's name, its bytes so far and its size.
        """
        arguments = http_arguments(url, api_key, timeout, project)
        wire = AsyncWire(open_http_client(httpx2.AsyncClient, arguments, transport), retries + 1, on_bytes)
        super().__init__(wire, arguments["base_url"], patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Client(Blocking[Operations]):
    """The client: `job = Client().jobs.create({"model": "toy/mlp", "data": "toy/regression"})`."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        project: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        patience: float = 600.0,
        on_bytes: OnBytes | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """Takes the same arguments as AsyncClient, which describes them."""
        arguments = http_arguments(url, api_key, timeout, project)
        wire = BlockingWire(open_http_client(httpx2.Client, arguments, transport), retries + 1, on_bytes)
        twin = Operations(wire, arguments["base_url"], patience)
        super().__init__(twin)
        self.url = twin.url
        self.jobs = Jobs(twin.jobs)
        self.files = Files(twin.files)
        self.bundles = Bundles(twin.bundles)
        self.keys = Keys(twin.keys)
        self.webhooks = Webhooks(twin.webhooks)

    stream = yields(Operations.stream)
    compare = waits(Operations.compare)
    nodes = waits(Operations.nodes)
    drain = waits(Operations.drain)
    remove_node = waits(Operations.remove_node)
    queue = waits(Operations.queue)
    components = waits(Operations.components)
    health = waits(Operations.health)
    close = waits(Operations.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _clock_ahead(date: str | None) -> float | None:
    try:
        # The header has whole seconds, rounded down.
        return parsedate_to_datetime(date or "").timestamp() + 0.5 - time.time()
    except ValueError:
        return None
