"""Tests a Redis that loses data, dies, freezes or is full. Training continues, and every event arrives.

There is no consumer group that could be lost (docs/decisions/0002). The tests delete the stream, the inbox and the
lists of replies to workers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import redis

from footplate.contract import redis_keys
from tests.faults.chatter import Books
from tests.support.processes import at_ease
from tests.support.system import LONG_TOY, System, assert_whole

LEASE_SECONDS = 8
LONGER_THAN_A_LEASE = LEASE_SECONDS + 1.0
LONGER_THAN_A_SOCKET = 6.0
"""Seconds that exceed the timeout of a Redis socket, so that every pending command fails."""
ANSWER_SECONDS = 3.0


@pytest.fixture
def books(system: System) -> Books:
    return Books(system)


@pytest.fixture
def client(system: System) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(system.redis.url) as client:
        yield client


@pytest.mark.fault(6, without="a lost start message is sent again", red="the job's start message was sent again")
@pytest.mark.fault(6, without="unacknowledged events are sent again", red="every sent event has arrived")
@pytest.mark.fault(6, without="events after a gap are not stored", red="lost without a report")
@pytest.mark.fault(6, without="leases pause while Redis is unreachable", red="rescued, although no node was lost")
def test_no_failure_of_redis_stops_training_or_loses_an_event(
    system: System, books: Books, client: redis.Redis
) -> None:
    system.environment |= {"FOOTPLATE_LEASE_SECONDS": str(LEASE_SECONDS), "FOOTPLATE_CLAIM_SECONDS": "600"}
    system.start_service("api")
    system.start_service("control")
    system.start_node()
    job = forgotten_with_a_start_message_in_it(system, books, client)

    for fault in (trimmed_and_deleted, full, down, frozen, flushed, killed):
        fault(system)
        everything_arrives(system, job, books, after=fault.__name__)
    finish(system, job, books)


def forgotten_with_a_start_message_in_it(system: System, books: Books, client: redis.Redis) -> str:
    queue = redis_keys.queue(system.get("/nodes")["data"][0]["id"])
    system.nodes[1].freeze()
    # The answer to an earlier request would be in the node's socket, where Redis cannot lose it.
    system.processes.until(
        lambda: not any(_waits_for_messages(item) for item in client.client_list()),
        what="no request is pending",
    )
    job = system.submit(books.job())
    what = "the job's start message was sent"
    system.until(lambda: any(job.encode() in raw for raw in client.lrange(queue, 0, -1)), within=20, what=what, job=job)
    system.redis.flush()
    system.nodes[1].thaw()
    again = "the job's start message was sent again"
    system.until(lambda: system.job(job)["reason"] != "placed", within=15, what=again, job=job)
    it_trains(system, job, books)
    return job


def _waits_for_messages(connection: dict[str, str]) -> bool:
    return connection["cmd"] == "brpop" and "b" in connection["flags"]


def it_trains(system: System, job: str, books: Books) -> None:
    system.until(lambda: books.sent_count > 1000, within=60, what="the job trains and sends events", job=job)


def trimmed_and_deleted(system: System) -> None:
    with redis.Redis.from_url(system.redis.url) as client, while_control_does_not_read(system):
        system.processes.until(
            lambda: client.xlen(redis_keys.EVENTS) > 8, within=20, what="more than 8 batches of events wait"
        )
        client.xtrim(redis_keys.EVENTS, maxlen=4, approximate=False)
        waiting = client.xlen(redis_keys.EVENTS)
        system.processes.until(
            lambda: client.xlen(redis_keys.EVENTS) > waiting, within=20, what="more batches of events wait"
        )
        client.delete(redis_keys.EVENTS, redis_keys.INBOX, *client.keys("fp:reply:*"))


@contextmanager
def while_control_does_not_read(system: System) -> Iterator[None]:
    system.services["control"].freeze()
    try:
        yield
    finally:
        system.services["control"].thaw()


def full(system: System) -> None:
    system.redis.say("CONFIG", "SET", "maxmemory", "1")
    users_are_answered(system, LONGER_THAN_A_LEASE)
    system.redis.say("CONFIG", "SET", "maxmemory", "0")


def down(system: System, seconds: float = LONGER_THAN_A_LEASE) -> None:
    system.redis.kill()
    users_are_answered(system, seconds)
    system.redis.start()


def frozen(system: System) -> None:
    system.redis.freeze()
    users_are_answered(system, LONGER_THAN_A_SOCKET)
    system.redis.thaw()


def flushed(system: System) -> None:
    system.redis.flush()


def killed(system: System) -> None:
    system.redis.restart_empty()


def users_are_answered(system: System, seconds: float) -> None:
    """Submits, reads and cancels jobs for these seconds, and checks that the answers do not wait for Redis."""
    ends, rounds = time.monotonic() + seconds, list[float]()
    while (began := time.monotonic()) < ends or len(rounds) < 3:
        job = system.submit(LONG_TOY)
        system.events(job)
        assert system.do(job, "cancel").status_code == 202
        assert system.state(job) == "cancelled"
        rounds.append(time.monotonic() - began)
        system.processes.until(partial(_is_past, began + 0.5), what="a moment has passed")
    assert statistics.median(rounds) < at_ease(ANSWER_SECONDS), f"four answers took {rounds} s"


def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


def everything_arrives(system: System, job: str, books: Books, *, after: str, within: float = 30) -> None:
    sent_count = books.sent_count

    def arrived() -> bool:
        now = system.job(job)
        assert now["attempt"] == 1, f"rescued, although no node was lost: {now['message']} ({after})"
        return int(now["metrics"].get("n", 0)) >= sent_count

    what = f"every sent event has arrived after Redis was {after}"
    system.until(arrived, within=within, what=what, job=job)
    numbers = [event["data"]["n"] for event in system.events(job) if "n" in event["data"]]
    lost_numbers = set(range(1, sent_count + 1)) - set(numbers)
    assert not lost_numbers, f"{len(lost_numbers)} events are lost without a report after Redis was {after}"


def finish(system: System, job: str, books: Books, within: float = 90) -> None:
    books.close()
    outcome = system.until_settled(job, within=within)
    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 1), outcome
    events = system.events(job)
    assert_whole(events)
    numbers = [event["data"]["n"] for event in events if "n" in event["data"]]
    assert numbers == list(range(1, books.sent_count + 1))
    assert books.rate > 1000, f"only {books.rate:.0f} events per second were sent"
    # The machine may cause one long step. Redis was unreachable three times, so the second-longest step counts.
    _, second = books.longest_steps
    assert second < LONGER_THAN_A_SOCKET / 2, f"training stood still for {second:.1f} s"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.fault(6, without=None, because="its short form has four")
def test_redis_may_be_down_for_ten_minutes(system: System, books: Books) -> None:
    system.start()
    job = system.submit(books.job())
    it_trains(system, job, books)

    down(system, seconds=600)

    everything_arrives(system, job, books, after="down for ten minutes", within=900)
    finish(system, job, books)


@pytest.mark.fault(7, without="a stop is repeated until it is received", red="was lost, and received no stop")
def test_requests_while_redis_is_down_are_accepted_and_applied_later(system: System) -> None:
    system.start(slots=3)
    # Training takes longer than a stop may take, so a job that receives no stop is given up.
    slow = {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.008}}
    long = {**LONG_TOY, "data": slow, "training": {**LONG_TOY["training"], "max_steps": 250}}
    cancelled, paused = system.submit(long), system.submit(long)
    for job in (cancelled, paused):
        system.until_step(job, 2)
    system.redis.kill()

    assert system.do(cancelled, "cancel").status_code == 202
    assert system.do(paused, "pause").status_code == 202
    fresh = system.submit({**LONG_TOY, "training": {"max_steps": 10, "logging_steps": 1}})
    stopped_job = system.submit(LONG_TOY)
    assert system.do(stopped_job, "cancel").status_code == 202
    assert [system.state(job) for job in (cancelled, paused, stopped_job)] == ["stopping", "stopping", "cancelled"]
    system.redis.start()

    for job, state in ((cancelled, "cancelled"), (paused, "paused"), (fresh, "succeeded")):
        outcome = system.until_settled(job)
        assert (outcome["state"], outcome["attempt"]) == (state, 1), outcome
        [attempt] = system.get(f"/jobs/{job}/attempts")["data"]
        assert attempt["ending"] != "lost", f"the job that is {state} was lost, and received no stop"
        assert_whole(system.events(job))
    assert system.do(paused, "resume").status_code == 202
    system.until(lambda: system.job(paused)["attempt"] == 2, within=60, what="the job has a second attempt", job=paused)
    system.until_state(paused, "running")
