"""Events wait until they are acknowledged, and a journal that grows too long ends its attempt.

`tests/faults/test_redis.py` tests a Redis that dies, freezes or loses its data.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from footplate.contract import redis_keys
from tests.support.processes import until
from tests.worker.conftest import Lasting


@pytest.fixture(scope="module")
def lasting(make_lasting: Callable[..., Lasting]) -> Lasting:
    return make_lasting(journal_max_mb=0.5)


def test_a_journal_without_an_acknowledgement_stays(lasting: Lasting) -> None:
    control = lasting.control
    control.acknowledges = False
    job = lasting.submit(training={"max_steps": 5, "save_strategy": "no"})
    control.done(job, within=60)
    beats = control.nodes[lasting.node.node].number
    until(lambda: control.nodes[lasting.node.node].number > beats + 2, what="the node sends three heartbeats")

    assert [running_job.job for running_job in control.nodes[lasting.node.node].running] == [job]
    control.acknowledges = True

    until(lambda: not list(lasting.start.journals.iterdir()), within=15, what="the acknowledged journal is deleted")
    until(lambda: control.nodes[lasting.node.node].running == [], what="the node reports no running attempt")


def test_canary_messages_are_not_logged(lasting: Lasting) -> None:
    canary = redis_keys.canary(lasting.node.node, lasting.node.boot)
    until(lambda: lasting.control.client.exists(canary), what="a canary came back")

    assert f"{redis_keys.CANARY_TASK}[" not in lasting.process.output


def test_no_message_is_sent_to_the_default_queue_of_celery(lasting: Lasting) -> None:
    control = lasting.control
    job = lasting.submit(training={"max_steps": 3, "save_strategy": "no"})
    control.done(job, within=60)
    until(
        lambda: control.client.exists(redis_keys.canary(lasting.node.node, lasting.node.boot)),
        what="a canary came back",
    )

    result = {key.decode() for key in control.client.keys("*")}
    assert not {name for name in result if "celery" in name or "pidbox" in name}, result
