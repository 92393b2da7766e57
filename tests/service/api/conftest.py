"""Starts a real server on a socket with a real database, in the event loop of the test."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from footplate.cli import main
from footplate.contract.events import Kind
from footplate.contract.ids import Fence, JobId, new_checkpoint_id
from footplate.contract.layout import checkpoint_folder
from footplate.contract.lifecycle import JobState, Reason
from service.app import create_app
from service.auth import Gatekeeper
from service.caches import Catalogues, WebhookProjects
from service.deps import Services
from service.events.tail import Tail
from service.prometheus_metrics import Meters
from service.redis_client import RedisNotifier
from service.server import Server, listen
from service.settings import ServiceSettings
from service.store import checkpoints, events, jobs, schema
from service.store.database import Database
from service.store.row_types import CheckpointRow
from service.store.times import now_ms
from tests.support.postgres import PostgresServer
from tests.support.system import bring_to_schema

KEY = "a-key-of-22-characters-or-more"
SPEC = {"model": "toy/mlp", "data": "toy/regression"}
FOLDER = Path(__file__).parent
PATIENCE = 120.0
"""Timeout in seconds for answers that come at once or never. It is long because a machine may freeze for a while."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves a test on PostgreSQL to the matrix if other tests send all of its statements to PostgreSQL.

    Tests marked `own_statement` always run on both databases. They send statements that no other test sends, or depend
    on how PostgreSQL locks and notifies.
    """
    for item in items:
        is_on_postgres = item.path.is_relative_to(FOLDER) and item.get_closest_marker("postgres") is not None
        if is_on_postgres and item.get_closest_marker("own_statement") is None:
            item.add_marker(pytest.mark.matrix)


def each_case(names: str | Sequence[str], cases: Sequence[Any]) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Runs a test for each case against one API process. `pytest.mark.parametrize` would start one for each case."""
    words = [names] if isinstance(names, str) else list(names)

    def over_all(test: Callable[..., Awaitable[None]]) -> Any:
        async def run(**fixtures: Any) -> None:
            for case in cases:
                try:
                    await test(**fixtures, **dict(zip(words, [case] if isinstance(names, str) else case, strict=True)))
                except Exception as error:
                    error.add_note(f"the case is {case!r}")
                    raise

        signature = inspect.signature(test)
        parameters = [parameter for name, parameter in signature.parameters.items() if name not in words]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return over_all


class Api:
    """One API process and its client, with methods that write what control and workers would write."""

    def __init__(self, services: Services, server: Server, client: httpx2.AsyncClient) -> None:
        self.services, self.server, self.client = services, server, client
        self.db, self.url = services.db, server.url

    async def submit(self, **changes: Any) -> JobId:
        answer = await self.client.post("/jobs", json={**SPEC, **changes})
        assert answer.status_code == 201, answer.text
        return JobId(answer.json()["id"])

    async def append(self, job: JobId, *values: dict[str, Any], kind: Kind = Kind.LOG, wake: bool = True) -> None:
        """Stores one event for each value, as ingest would."""

        def write(conn: Any) -> None:
            for value in values:
                events.append(conn, job, kind, value, now_ms())

        await self.db.write(write)
        if wake:
            self.services.tail.wake([job])

    async def end(self, job: JobId, to: JobState = JobState.SUCCEEDED) -> None:
        """Moves a job through the state table to a terminal state, as if a worker had run it."""

        def write(conn: Any) -> None:
            steps = [(JobState.STARTING, Reason.PLACED), (JobState.RUNNING, Reason.TRAINING), (to, Reason.COMPLETED)]
            for state, reason in steps:
                row = jobs.lock(conn, job)
                assert row
                assert jobs.move(conn, job, to=state, expect=[row.state], reason=reason, now=now_ms(),
                                 next_attempt=1, next_fence=Fence(1))  # fmt: skip

        await self.db.write(write)
        self.services.tail.wake([job])

    async def commit(self, job: JobId, step: int, attempt: int = 1, **changes: Any) -> CheckpointRow:
        """Records a checkpoint as ingest does, without creating its files."""
        row = CheckpointRow(
            id=new_checkpoint_id(), job_id=job, attempt=attempt, step=step, no=step, status="committed",
            path=str(checkpoint_folder(job, attempt, step)), bytes=1, files=1, manifest_sha256="0" * 64, metrics="{}",
            is_best=False, score=None, created_at=now_ms(),
        )  # fmt: skip
        row = replace(row, **changes)
        await self.db.write(lambda conn: checkpoints.insert_checkpoint(conn, row))
        return row

    async def pages(self, path: str, by: str = "cursor", **query: Any) -> list[Any]:
        """Returns the rows of all pages."""
        result: list[Any] = []
        cursor: Any = None
        while not result or cursor is not None:
            more = {} if cursor is None else {by: cursor}
            page = (await self.client.get(path, params={**query, **more})).json()
            result, cursor = result + page["data"], page["next_cursor"]
        return result

    @asynccontextmanager
    async def socket(self, path: str, **options: Any) -> AsyncIterator[ClientConnection]:
        async with connect(self.url.replace("http", "ws") + path, max_size=None, **options) as result:
            yield result

    async def frames(self, path: str, **options: Any) -> tuple[list[Any], int, str]:
        """Returns all frames until the server closes the socket, the close code and the reason."""
        async with self.socket(path, **options) as socket:
            return await rest(socket)


async def rest(socket: ClientConnection) -> tuple[list[Any], int, str]:
    result: list[Any] = []
    try:
        while True:
            result.append(json.loads(await asyncio.wait_for(socket.recv(), PATIENCE)))
    except ConnectionClosed as closed:
        how = closed.rcvd
    assert how, "the connection broke without a close frame"
    return result, how.code, how.reason


def numbers(frames: list[Any]) -> list[int]:
    """Returns the `no` of every event, in the order of arrival."""
    return [event["no"] for frame in frames for event in frame.get("events", [])]


Serve = Callable[..., Awaitable[Api]]
Command = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """Yields the name of a migrated database, which the databases of tests are copied from."""
    with postgres_server.database() as url:
        schema.migrate(url)
        yield url.rpartition("/")[2]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'footplate.db'}"
    bring_to_schema(url)
    return url


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, migrated_postgres: str) -> Iterator[str]:
    with postgres_server.database(template=migrated_postgres) as url:
        yield url


@asynccontextmanager
async def servers(tmp_path: Path) -> AsyncIterator[Serve]:
    """Yields a function that starts servers for one test, such as `await serve(database_url, api_key=KEY)`."""
    running: list[tuple[Api, asyncio.Task[None]]] = []

    async def start(database: str, **settings: Any) -> Api:
        around, untraced = settings.pop("around", lambda app: app), settings.pop("untraced", None)
        settings = {"port": 0, "redis": "redis://127.0.0.1:1/0", **settings}
        chosen = ServiceSettings(home=tmp_path, database=database, **settings)
        db = Database(chosen.database_url)
        tail, notifier, catalogues = Tail(db), RedisNotifier(chosen.redis), Catalogues(db)
        services = Services(
            settings=chosen, db=db, tail=tail, catalogues=catalogues, gatekeeper=Gatekeeper(chosen, db),
            meters=Meters(), notifier=notifier, webhooks=WebhookProjects(db), wake_control=lambda: None,
            control=notifier.control, untraced=untraced,
        )  # fmt: skip
        await catalogues.start()
        await services.gatekeeper.keyring.start()
        await services.webhooks.start()
        server = Server(around(create_app(services)), chosen, listen(chosen), on_stop=tail.close)
        headers = {"Authorization": f"Bearer {settings['api_key']}"} if settings.get("api_key") else {}
        # Without `verify=False` each client reads this machine's certificates, which takes 29 ms of CPU time.
        client = httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE, verify=False)
        api = Api(services, server, client)
        serving = asyncio.create_task(server.serve())
        running.append((api, serving))
        # Until the server has started, its bound socket refuses connections.
        while not (server.started or serving.done()):
            await asyncio.sleep(0)
        return api

    yield start
    for api, serving in running:
        await api.client.aclose()
        api.server.stop()
        await serving
        await api.services.gatekeeper.keyring.close()
        await api.services.catalogues.close()
        await api.services.webhooks.close()
        await api.services.notifier.close()
        await asyncio.to_thread(api.db.close)


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    async with servers(tmp_path) as serve:
        yield serve


@pytest.fixture
async def api(serve: Serve, sqlite_url: str) -> Api:
    return await serve(sqlite_url)


@pytest.fixture
async def both(serve: Serve, database_url: str) -> Api:
    """Starts an API for a test that runs once on SQLite and once on PostgreSQL."""
    return await serve(database_url)


@pytest.fixture
def command(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Returns a function that runs the program's `main` in a thread. It returns the exit code, stdout and stderr."""
    monkeypatch.setenv("FOOTPLATE_URL", api.url)
    if key := api.services.settings.api_key:
        monkeypatch.setenv("FOOTPLATE_API_KEY", key.get_secret_value())

    async def run(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, words)
        return code, *capsys.readouterr()

    return run
