"""An attempt's link to control survives faults of Redis and the service."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from footplate.contract import redis_keys
from footplate.contract.events import now_text
from footplate.contract.ids import Fence, new_claim_id, new_job_id
from footplate.contract.messages import Grant
from tests.support.factories import make_spec
from tests.support.processes import REPOSITORY, Processes, until
from tests.support.redis_server import RedisServer
from tests.worker.hanging import HUNG_SECONDS
from worker import redis_client
from worker.attempt import control_link
from worker.attempt.control_link import ControlLink, Sender
from worker.attempt.journal import SUFFIX, Journal, JournalName
from worker.node.resender import KEEP_JOURNALS_SECONDS, Resender
from worker.redis_client import connect


@pytest.fixture
def grant() -> Grant:
    spec = make_spec().as_json()
    return Grant(job=new_job_id(), attempt=1, fence=Fence(1), claim=new_claim_id(), spec=spec, beat_seconds=0.1)


@pytest.fixture
def journal(tmp_path: Path, grant: Grant) -> Journal:
    journal = Journal.create(tmp_path, JournalName(**dict(grant)), 10)
    journal.append([{"kind": "log", "at": now_text(), "data": {"n": n}} for n in range(10)])
    return journal


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_link_blocked_by_a_frozen_redis_leaks_no_descriptor(
    redis: RedisServer, grant: Grant, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "SOCKET_SECONDS", 60.0)
    before = descriptors()
    client, wake = connect(redis.url), os.eventfd(0, os.EFD_NONBLOCK)
    link = ControlLink(client, grant, journal, wake)
    # Redis is frozen before the first command, because the link would continue after a late reply.
    redis.freeze()
    link.start()
    until(lambda: "read_response" in stack_of(link), what="the link waits for a reply of Redis")

    link.close(within=0.0)
    os.close(wake)
    assert link.is_alive()
    redis.thaw()
    link.join(60)
    client.close()

    until(lambda: descriptors() <= before, what="the link has closed all descriptors")


def stack_of(thread: Any) -> list[str]:
    frame, names = sys._current_frames().get(thread.ident), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_a_service_restored_to_an_earlier_watermark_gets_the_missing_events(
    redis: RedisServer, journal: Journal, grant: Grant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_link, "SILENCE_SECONDS", -1.0)
    client, sender = connect(redis.url), Sender(journal, watermark=8)
    client.set(redis_keys.EPOCH, "epoch")
    client.set(redis_keys.watermark(grant.job, grant.attempt, 0), 3)

    def sent_numbers() -> list[int]:
        client.delete(redis_keys.EVENTS)
        sender.exchange(client)
        return [
            event["seq"]
            for _, entry in client.xrange(redis_keys.EVENTS)
            for event in json.loads(entry[b"batch"])["events"]
        ]

    assert sent_numbers() == [9, 10]
    assert sent_numbers() == []
    until(lambda: sent_numbers() == [4, 5, 6, 7, 8, 9, 10], what="events after the earlier watermark are sent again")


def test_unreadable_and_unsent_journals_are_deleted_after_a_week(redis: RedisServer, tmp_path: Path) -> None:
    fresh, old = tmp_path / "fresh.unreadable", [tmp_path / "old.unreadable", tmp_path / f"old{SUFFIX}"]
    for path in (fresh, *old):
        path.write_text("not a journal")
    for path in old:
        os.utime(path, (0, time.time() - KEEP_JOURNALS_SECONDS - 1))

    Resender(tmp_path).send(connect(redis.url))

    assert list(tmp_path.iterdir()) == [fresh]


def test_the_link_of_a_hung_supervisor_stops_its_heartbeats(redis: RedisServer, processes: Processes) -> None:
    """Heartbeats of the link alone would keep the lease. A supervisor frozen together with its link continues."""
    client = connect(redis.url)
    process = processes.start(
        "-m", "tests.worker.hanging", redis.url, str(processes.folder), env={"PYTHONPATH": REPOSITORY}
    )

    def beats(more: int) -> None:
        names = client.llen(redis_keys.INBOX)
        until(lambda: client.llen(redis_keys.INBOX) >= names + more, what=f"the link sends {more} heartbeats")

    beats(round(3 * HUNG_SECONDS / 0.1))
    process.signal(signal.SIGSTOP)
    thaw_at = time.monotonic() + 2 * HUNG_SECONDS
    until(lambda: time.monotonic() > thaw_at, within=60, what="the process was frozen for longer than a loop may hang")
    process.signal(signal.SIGCONT)
    beats(round(3 * HUNG_SECONDS / 0.1))

    (processes.folder / "hang").touch()

    assert process.wait(20) == -signal.SIGKILL
