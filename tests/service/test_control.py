"""Tests control with a real Redis, which loses data, freezes and dies."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from sqlalchemy import select

from footplate.contract import layout, redis_keys
from footplate.contract.events import Kind
from footplate.contract.ids import JobId, new_claim_id, new_node_id
from footplate.contract.lifecycle import JobState, StopMode
from footplate.contract.messages import (
    TO_ATTEMPT,
    AttemptReply,
    Claim,
    Denial,
    EventBatch,
    Grant,
    NodeBeat,
    ProtocolMessage,
)
from footplate.contract.serving import SLOT_WANTED
from service.control.control_state import ControlState, LockUncertain
from service.control.duties import DUTIES, Duty
from service.control.process import Control
from service.jobs.stopping import cancel
from service.jobs.submit import Submission
from service.settings import ServiceSettings
from service.store import attempts, events, jobs
from service.store.control_lock import control_lock
from service.store.database import Database
from service.store.row_types import EventRow, JobRow
from service.store.tables import dead_events
from service.store.times import now_ms
from tests.support.factories import make_spec, make_worker_event
from tests.support.processes import at_ease, until_async
from tests.support.redis_server import RedisServer
from tests.support.system import bring_to_schema


class Worker:
    """A worker's connection to control over Redis, with methods that read SQL for the tests."""

    def __init__(self, control: Control, db: Database, settings: ServiceSettings, server: RedisServer) -> None:
        self.control, self.db, self.settings, self.server = control, db, settings, server
        self.redis = redis_py.Redis.from_url(server.url, socket_timeout=60)
        self.node, self.boot = new_node_id(), "boot-1"
        self.woken: list[set[JobId]] = []

    async def send_message(self, message: ProtocolMessage) -> None:
        await asyncio.to_thread(self.redis.rpush, redis_keys.INBOX, message.model_dump_json())

    async def pop(self, key: str, request: ProtocolMessage | None = None, within: float = 10) -> bytes:
        """Returns an item of a list. Repeats the message `request` like workers do, because an inbox may lose it."""
        deadline = asyncio.get_running_loop().time() + at_ease(within)
        while (remaining_seconds := deadline - asyncio.get_running_loop().time()) > 0:
            item = await asyncio.to_thread(self.redis.blpop, [key], min(remaining_seconds, 2))
            if item:
                return bytes(item[1])
            if request is not None:
                await self.send_message(request)
        raise AssertionError(f"nothing in {key} within {within} s")

    async def await_reply(self, claim: str, request: ProtocolMessage | None = None) -> Any:
        return TO_ATTEMPT.validate_json(await self.pop(redis_keys.reply(claim), request))  # type: ignore[arg-type]

    async def node_beats(self, number: int = 1, **says: Any) -> None:
        beat = NodeBeat(node=self.node, boot=self.boot, number=number, name="n", slots=2, **says)
        await self.send_message(beat)
        await self.pop(redis_keys.node_reply(self.node, self.boot), beat)

    async def start_message(self) -> dict[str, Any]:
        """Returns the arguments with which a Celery worker of this node would be called."""
        message = json.loads(await self.pop(redis_keys.queue(self.node)))
        _, kwargs, _ = json.loads(base64.b64decode(message["body"]))
        assert message["headers"]["task"] == redis_keys.TASK
        return kwargs

    async def submit(self, **changes: Any) -> JobId:
        job_id = JobId("job_" + new_node_id()[5:])
        spec = make_spec(**changes)
        text = spec.model_dump_json()
        await self.db.write(Submission(project="default", spec=spec, spec_json=text, now=now_ms(), job_id=job_id))
        self.control.wake()
        return job_id

    async def job(self, job_id: JobId) -> JobRow:
        return await self.db.read(lambda conn: jobs.get(conn, "default", job_id))

    async def events(self, job_id: JobId) -> list[EventRow]:
        return await self.db.read(lambda conn: events.after(conn, job_id, 0, 1_000_000))

    async def claim(self, kwargs: dict[str, Any]) -> Grant | Denial:
        claim = Claim(claim=new_claim_id(), node=self.node, boot=self.boot, **kwargs)
        await self.send_message(claim)
        answer = await self.await_reply(claim.claim, claim)
        assert isinstance(answer, Grant | Denial)
        return answer

    async def start(self, **changes: Any) -> Grant:
        """Submits a job, and returns its grant once control has placed and dispatched the job."""
        await self.node_beats()
        job_id = await self.submit(**changes)
        # Control repeats the start message of an earlier job if a busy machine claims that job late.
        while (kwargs := await self.start_message())["job"] != job_id:
            pass
        answer = await self.claim(kwargs)
        assert isinstance(answer, Grant)
        return answer

    async def running(self, job_id: JobId) -> bool:
        return (await self.job(job_id)).state is JobState.RUNNING

    def entry(self, grant: Grant, seqs: list[int], last: int | None = None) -> bytes:
        events = [_event(seq, last) for seq in seqs]
        return (
            EventBatch(
                job=grant.job, attempt=grant.attempt, fence=grant.fence, claim=grant.claim, source=0, events=events
            )
            .model_dump_json()
            .encode()
        )

    async def send(self, grant: Grant, seqs: list[int], last: int | None = None) -> None:
        await asyncio.to_thread(self.redis.xadd, redis_keys.EVENTS, {"batch": self.entry(grant, seqs, last)})

    def watermark(self, grant: Grant) -> int:
        return int(self.redis.get(redis_keys.watermark(grant.job, grant.attempt, 0)) or 0)


def _event(seq: int, last: int | None) -> dict[str, Any]:
    if seq == 1:
        event = make_worker_event(seq, kind=Kind.STATE, data={"state": "running"})
    elif seq == last:
        event = make_worker_event(seq, kind=Kind.DONE, data={"ending": "finished", "reason": "completed"})
    else:
        event = make_worker_event(seq, data={"loss": float(seq)})
    return event.model_dump(mode="json")


short_lease = pytest.mark.parametrize("worker", [5], indirect=True, ids=["lease of 5 s"])
"""Other tests have a longer lease, because they send no heartbeats and may take longer on a busy machine."""


@pytest.fixture
async def worker(request: pytest.FixtureRequest, redis: RedisServer, tmp_path: Path) -> AsyncIterator[Worker]:
    settings = ServiceSettings(
        home=tmp_path,
        redis=redis.url,
        lease_seconds=getattr(request, "param", 30),
        beat_seconds=0.5,
        resend_seconds=0.5,
        poll_seconds=0.05,
    )
    bring_to_schema(settings.database_url)
    db = Database(settings.database_url)
    woken: list[set[JobId]] = []
    control = Control(db, settings, lambda changed: woken.append(set(changed)))
    running = asyncio.create_task(control.run())
    await until_async(lambda: control.is_active, within=10, what="control is active")
    running_worker = Worker(control, db, settings, redis)
    running_worker.woken = woken
    yield running_worker
    await control.close()
    await asyncio.wait_for(running, 120)
    db.close()
    running_worker.redis.close()


async def test_a_job_goes_through_dispatch_grant_and_events_to_its_end(worker: Worker) -> None:
    grant = await worker.start()
    await worker.send(grant, [1, 2, 3], last=3)

    reply = await worker.await_reply(grant.claim)

    assert isinstance(reply, AttemptReply)
    assert (reply.closed, reply.watermark) == (True, 3)
    assert (await worker.job(grant.job)).state is JobState.SUCCEEDED
    assert worker.watermark(grant) == 3
    assert worker.redis.xlen(redis_keys.EVENTS) == 0
    assert {grant.job} in worker.woken
    assert await worker.db.read(attempts.open_sources) == []
    assert (worker.settings.artifacts_path / layout.PROBE).exists()


async def test_the_count_of_unreadable_journals_follows_what_nodes_report(worker: Worker) -> None:
    await worker.node_beats(1, unreadable=2)
    await worker.node_beats(2, unreadable=1)

    assert worker.control._state.counts.journals_unreadable == 1


async def test_an_unanswered_start_message_is_sent_again(worker: Worker) -> None:
    await worker.node_beats()
    await worker.submit()

    first, second = await worker.start_message(), await worker.start_message()

    assert first == second


async def test_a_session_is_notified_that_a_job_waits_for_its_slot(worker: Worker) -> None:
    session = await worker.start(data={}, resume_from={"path": "models://a", "mode": "weights"}, serve={})
    await worker.send(session, [1])
    await until_async(lambda: worker.running(session.job), what="the session runs")
    for _ in range(2):
        await worker.submit()

    assert await worker.pop(redis_keys.serving_withdrawn(session.job)) == SLOT_WANTED.encode()


async def test_a_cancel_reaches_the_worker_before_its_next_heartbeat(worker: Worker) -> None:
    grant = await worker.start()
    await worker.send(grant, [1])
    await worker.db.write(cancel, "default", JobId(grant.job), StopMode.GRACEFUL, now_ms(), stop_seconds=60.0)
    worker.control.wake()

    reply = await worker.await_reply(grant.claim)

    assert reply.stop is not None
    assert (reply.stop.because, reply.stop.mode) == ("cancel", "graceful")


@short_lease
async def test_a_silent_attempt_is_lost_and_started_again(worker: Worker) -> None:
    grant = await worker.start()
    await worker.send(grant, [1])

    numbers = iter(range(2, 1000))

    async def is_back() -> bool:
        await worker.node_beats(next(numbers))
        return (await worker.job(grant.job)).attempt == 2

    await until_async(is_back, within=20, what="the job has a second attempt")
    assert worker.control._state.counts.attempts_lost == 1
    assert +worker.control._state.counts.retries == Counter(node_lost=1)
    assert not +worker.control._state.counts.jobs_failed


async def test_a_job_that_fails_is_counted_with_its_reason(worker: Worker) -> None:
    grant = await worker.start()
    end = make_worker_event(1, kind=Kind.DONE, data={"ending": "failed", "reason": "oom"})
    batch = EventBatch(
        job=grant.job, attempt=1, fence=grant.fence, claim=grant.claim, source=0, events=[end.model_dump(mode="json")]
    )
    await asyncio.to_thread(worker.redis.xadd, redis_keys.EVENTS, {"batch": batch.model_dump_json()})

    await until_async(lambda: +worker.control._state.counts.jobs_failed, within=10, what="the failure is counted")
    assert +worker.control._state.counts.jobs_failed == Counter(oom=1)


async def test_unreadable_messages_do_not_delay_others(worker: Worker) -> None:
    for nonsense in (b"", b"{}", b"\xff\xfe", b'{"type":"claim"}', b"[" * 5000):
        worker.redis.rpush(redis_keys.INBOX, nonsense)
        worker.redis.xadd(redis_keys.EVENTS, {"batch": nonsense})
    worker.redis.xadd(redis_keys.EVENTS, {"other": b"x"})

    grant = await worker.start()
    await worker.send(grant, [1, 2], last=2)

    assert (await worker.await_reply(grant.claim)).closed
    assert len(await worker.db.read(lambda conn: conn.execute(select(dead_events)).all())) == 6


def _invalid_events(grant: Grant) -> dict[str, dict[str, Any]]:
    """Returns invalid events that users' code may write to the shared socket, or that a forged worker may send."""
    path = f"{layout.attempt_folder(grant.job, grant.attempt)}/checkpoint-1"
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"a": deep}
    return {
        "an epoch too large for a float": make_worker_event(2).model_dump(mode="json") | {"epoch": 10**400},
        "metrics nested 900 levels deep": make_worker_event(2).model_dump(mode="json") | {"data": deep},
        "a number of bytes too large for SQL": make_worker_event(
            2, kind=Kind.CHECKPOINT, data={"status": "committed", "path": path, "bytes": 10**30}
        ).model_dump(mode="json"),
        "a lone surrogate": make_worker_event(
            2, kind=Kind.CHECKPOINT, data={"status": "committed", "path": path, "manifest_sha256": "\ud800"}
        ).model_dump(mode="json"),
    }


@pytest.mark.parametrize(
    "poison",
    [
        "an epoch too large for a float",
        "metrics nested 900 levels deep",
        "a number of bytes too large for SQL",
        "a lone surrogate",
    ],
)
async def test_an_event_that_cannot_be_stored_does_not_delay_other_events(worker: Worker, poison: str) -> None:
    bad, good = await worker.start(), await worker.start()
    entry = json.loads(worker.entry(bad, [1, 2, 3], last=3))
    entry["events"][1] = _invalid_events(bad)[poison]
    worker.redis.xadd(redis_keys.EVENTS, {"batch": json.dumps(entry).encode()})
    await worker.send(good, [1, 2, 3], last=3)

    for grant in (good, bad):
        reply = await worker.await_reply(grant.claim)
        assert isinstance(reply, AttemptReply)
        assert (reply.closed, reply.watermark) == (True, 3)
        assert (await worker.job(grant.job)).state is JobState.SUCCEEDED
    assert worker.redis.xlen(redis_keys.EVENTS) == 0
    assert await worker.db.read(lambda conn: conn.execute(select(dead_events)).all())


async def test_a_message_that_fails_does_not_affect_the_messages_beside_it(worker: Worker) -> None:
    await worker.node_beats()
    await worker.submit()
    claim = Claim(claim=new_claim_id(), node=worker.node, boot=worker.boot, **await worker.start_message())
    endless = NodeBeat(node=new_node_id(), boot="b", number=1, name="n", slots=10**30)

    worker.redis.rpush(redis_keys.INBOX, endless.model_dump_json(), claim.model_dump_json(), endless.model_dump_json())

    assert isinstance(await worker.await_reply(claim.claim), Grant)


async def test_control_starts_again_although_a_duty_ignored_its_cancellation(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may swallow a cancellation that comes at the same moment as its own timeout."""
    cancellation = asyncio.Event()

    async def stubborn(_: ControlState) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancellation.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("service.control.process.DUTIES", (*DUTIES, Duty(stubborn)))
    for _ in range(2):
        await restart_control(worker)

    assert cancellation.is_set()


async def test_a_duty_that_fails_at_once_does_not_keep_control_from_closing(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closing control does not sleep, so such a duty could run again and again and block everything else."""
    tries = 0

    async def refuses(_: ControlState) -> None:
        nonlocal tries
        if (tries := tries + 1) >= 1000:
            await asyncio.sleep(0)
        raise LockUncertain("the lock may be somebody else's")

    first_check, answered = threading.Event(), threading.Event()

    def slow() -> bool:
        first_check.set()
        return answered.wait(300)

    monkeypatch.setattr("service.control.process.DUTIES", (*DUTIES, Duty(refuses)))
    await restart_control(worker)
    monkeypatch.setattr(worker.control._lock, "is_held", slow)
    await until_async(first_check.is_set, within=10, what="control checks its lock")

    await worker.control.close()
    answered.set()
    await until_async(lambda: not worker.control.is_active, within=10, what="control has closed")
    assert tries < 1000


async def restart_control(worker: Worker) -> None:
    other = control_lock(worker.settings.database_url)
    worker.control._lock.release()
    assert other.try_take()
    await until_async(lambda: not worker.control.is_active, within=10, what="control finds that its lock is gone")
    other.release()
    await until_async(lambda: worker.control.is_active, within=10, what="control is active again")
