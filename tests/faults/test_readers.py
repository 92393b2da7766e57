"""Tests clients that hold a connection without reading the answer or finishing the request."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState, Reason
from service.store import events, jobs
from service.store.database import Database
from service.store.row_types import EventRow
from tests.faults.visitor import WAITING
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import LEISURE, System

EVENTS = 12_000
"""The number of events of one kilobyte, which is more than the kernel buffers for a connection."""
SECONDS = 16.0
"""The seconds until a client is disconnected: ten, and three for a close that the client does not read."""
LISTENS = "0A"
"""The state LISTEN, as /proc/net/tcp writes it."""
HALF = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture
def system(processes: Processes, redis: RedisServer, sqlite_url: str, protection_off: list[str]) -> System:
    """Starts a system that has only an API process."""
    result = System(processes, redis, sqlite_url, without=protection_off)
    result.start_service("api")
    return result


@pytest.mark.fault(17, without="a slow reader is disconnected", red="the readers are disconnected")
@pytest.mark.fault(17, without="a request has a deadline", red="the connection with half a request is closed")
def test_idle_readers_and_half_requests_are_disconnected_and_cost_little_memory(
    system: System, sqlite_url: str
) -> None:
    job = system.submit(WAITING)
    fill(sqlite_url, JobId(job))
    service = system.services["api"]
    before = resident_megabytes(service.pid)
    with ExitStack() as open_:
        writer = open_.enter_context(connected(system, HALF))
        for _ in range(5):
            open_.enter_context(connected(system, handshake(job)))

        service.until(
            lambda: is_closed_by_the_service(writer),
            within=SECONDS,
            what="the connection with half a request is closed",
        )
        grown = resident_megabytes(service.pid) - before
        # Clients that answer no ping are disconnected later and by another protection, which does not count here.
        disconnected = partial(system.counted, "footplate_slow_readers_total")
        service.until(lambda: disconnected() == 5, within=SECONDS, what="the readers are disconnected", every=LEISURE)
        # The test's own connection would be counted, too.
        system.client.close()
        service.until(lambda: held_connections(system) == 0, within=SECONDS, what="the service holds no connection")

    system.forget_clients()
    assert grown < 20, f"five slow readers cost {grown:.0f} MB"
    assert system.job(job)["state"] == "queued", "it serves on"


@pytest.mark.soak
@pytest.mark.fault(17, without=None, because="that all get all is no protection that could be switched off")
def test_a_thousand_readers_get_everything_in_order_and_cost_little_memory(system: System, sqlite_url: str) -> None:
    job = system.submit(WAITING)
    service = system.services["api"]
    before = resident_megabytes(service.pid)
    address = f"{system.url.replace('http', 'ws')}/jobs/{job}/stream"
    group = [system.processes.start("-m", "bench.readers", address, "500", name=f"readers-{n}") for n in range(2)]
    for readers in group:
        readers.until(lambda program=readers: "ready" in program.output, within=60, what="all readers are caught up")

    fill(sqlite_url, JobId(job), count=2_000, characters=100)
    end(sqlite_url, JobId(job))

    for readers in group:
        assert readers.wait(120) == 0, readers.output
    grown = resident_megabytes(service.pid, "VmHWM") - before
    assert grown < 150, f"a thousand readers cost {grown:.0f} MB"


def fill(url: str, job: JobId, count: int = EVENTS, characters: int = 1000) -> None:
    """Stores a long history after the event of the job's submission, as ingest would store it."""
    db = Database(url)
    text = '{"text":"' + "x" * characters + '"}'
    rows = [
        EventRow(job, no, 0, -1, no, 0, "line", "2026-01-01T00:00:00.000Z", None, None, text)
        for no in range(2, count + 2)
    ]
    db.write_now(lambda conn: events.insert_many(conn, rows))
    db.write_now(lambda conn: jobs.record(conn, job, last_no=rows[-1].no))
    db.close()


def end(url: str, job: JobId) -> None:
    """Cancels a queued job, as a user would."""
    db = Database(url)
    move = partial(jobs.move, job_id=job, to=JobState.CANCELLED, expect=[JobState.QUEUED], reason=Reason.CANCEL, now=1)
    assert db.write_now(move)
    db.close()


def connected(system: System, request: bytes) -> socket.socket:
    """Opens a connection that sends these bytes, and then neither sends nor reads."""
    result = socket.socket()
    result.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    result.connect(("127.0.0.1", int(system.url.rpartition(":")[2])))
    result.sendall(request)
    return result


def handshake(job: str) -> bytes:
    return (
        f"GET /jobs/{job}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def is_closed_by_the_service(connection: socket.socket) -> bool:
    """Returns True if the service has closed the connection. Reads nothing from the connection."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def held_connections(system: System) -> int:
    """Returns the number of connections that the service itself holds.

    The kernel keeps a closed connection with unread data, so its client does not notice the close.
    """
    port = f":{int(system.url.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(local.endswith(port) and state != LISTENS and inode != "0" for _, local, _, state, *_, inode in
               (row[:10] for row in rows))  # fmt: skip


def resident_megabytes(pid: int, which: str = "VmRSS") -> float:
    """Returns the memory of a process at this moment, or its maximum if `which` is VmHWM."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(which)) / 1024
