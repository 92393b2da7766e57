"""Redis dies, freezes, forgets: training does not notice, and every event arrives once it is back."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from footplate.contract import keys
from tests.support.processes import Standstill, until
from tests.worker.conftest import Lasting
from tests.worker.fake_control import FakeControl

STEPS = 800
JOB: dict[str, Any] = {
    "data": {"use": "toy/regression", "args": {"seconds_per_item": 0.001}},
    "training": {"max_steps": STEPS, "logging_steps": 1, "save_strategy": "no", "per_device_train_batch_size": 4},
}


@pytest.fixture(scope="module")
def lasting(make_lasting: Callable[..., Lasting]) -> Lasting:
    return make_lasting(journal_max_mb=0.5)


def all_arrived(control: FakeControl, job: str) -> None:
    done = control.done(job, within=60)
    events = control.of(job)
    assert done["ending"] == "finished"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["step"] for event in events if "loss" in event["data"]] == list(range(1, STEPS + 1))


def longest_pause(control: FakeControl, job: str) -> float:
    """Between two logs, by the worker's own clock."""
    at = [time.mktime(time.strptime(event["at"][:19], "%Y-%m-%dT%H:%M:%S")) for event in control.of(job, "log")]
    return max(later - earlier for earlier, later in pairwise(at))


def test_a_redis_that_restarts_empty_costs_nothing(lasting: Lasting) -> None:
    control = lasting.control
    job = lasting.submit(**JOB)
    control.await_kind(job, "log", 50, within=60)

    for count in (200, 350):
        lasting.redis.restart_empty()
        control.await_kind(job, "log", count)

    all_arrived(control, job)


def test_a_frozen_redis_does_not_hold_training_up(lasting: Lasting) -> None:
    control = lasting.control
    job = lasting.submit(**JOB)
    control.await_kind(job, "log", 50, within=60)

    with Standstill() as still:
        lasting.redis.freeze()
        # Longer than a socket's timeout: every command that was under way fails.
        thaw_at = time.monotonic() + 7
        until(lambda: time.monotonic() > thaw_at, within=60, what="seven seconds have passed")
        lasting.redis.thaw()
        all_arrived(control, job)

    assert longest_pause(control, job) <= 2 + still.seconds


def test_a_flushed_redis_costs_nothing(lasting: Lasting) -> None:
    control = lasting.control
    job = lasting.submit(**JOB)
    for count in (50, 100, 150, 200):
        control.await_kind(job, "log", count, within=60)
        lasting.redis.flush()

    all_arrived(control, job)


def test_a_lost_entry_is_sent_again_after_a_silence(lasting: Lasting) -> None:
    control = lasting.control
    # It still has something to say when nobody listens any more.
    job = lasting.submit(**{**JOB, "data": {"use": "toy/regression", "args": {"seconds_per_item": 0.003}}})
    control.await_kind(job, "log", within=60)
    control.pauses.set()
    until(lambda: control.client.xlen(keys.EVENTS) > 3, what="entries wait")
    control.client.delete(keys.EVENTS)
    control.pauses.clear()

    all_arrived(control, job)


def test_what_nobody_acknowledges_stays(lasting: Lasting) -> None:
    control = lasting.control
    control.acknowledges = False
    job = lasting.submit(training={"max_steps": 5, "save_strategy": "no"})
    control.done(job, within=60)
    beats = control.nodes[lasting.node.node].number
    until(lambda: control.nodes[lasting.node.node].number > beats + 2, what="a second has passed")

    assert [one.job for one in control.nodes[lasting.node.node].running] == [job]
    control.acknowledges = True

    until(lambda: not list(lasting.start.journals.iterdir()), within=15, what="acknowledged, and gone")
    until(lambda: control.nodes[lasting.node.node].running == [], what="the node says that it runs nothing")


def test_no_message_ever_lands_in_a_list_called_celery(lasting: Lasting) -> None:
    control = lasting.control
    job = lasting.submit(training={"max_steps": 3, "save_strategy": "no"})
    control.done(job, within=60)
    until(lambda: control.client.exists(keys.canary(lasting.node.node, lasting.node.boot)), what="a canary came back")

    found = {key.decode() for key in control.client.keys("*")}
    assert not {name for name in found if "celery" in name or "pidbox" in name}, found


def test_the_bell_still_rings_after_a_flush(lasting: Lasting) -> None:
    control = lasting.control
    lasting.redis.flush()

    job = lasting.submit(training={"max_steps": 3, "save_strategy": "no"})

    assert control.done(job, within=60)["ending"] == "finished"


def test_a_full_journal_ends_the_attempt_and_says_so(lasting: Lasting) -> None:
    control = lasting.control
    job = lasting.submit(
        model="test/linear",
        data={"use": "test/data", "args": {"at": 9, "do": "print", "n": 64}},
        training={"max_steps": 8, "save_strategy": "no"},
    )

    done = control.done(job, within=60)

    assert (done["ending"], done["reason"], done["error"]["code"]) == ("failed", "journal_full", "journal_full")
    assert "FOOTPLATE_JOURNAL_MAX_MB" in done["error"]["hint"]
