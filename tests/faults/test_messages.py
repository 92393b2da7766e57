"""Messages that come twice, or a thousand times."""

from __future__ import annotations

import pytest
import redis

from contract import keys
from tests.support.system import LONG_TOY, System, assert_whole


@pytest.mark.fault(5, without="one grant for each attempt", red=r"granted \d+\.0 times")
def test_a_message_delivered_a_thousand_times_runs_once(system: System) -> None:
    system.start_service()
    system.start_node(slots=2)
    system.nodes[1].freeze()
    job = system.submit(LONG_TOY)
    system.until_state(job, "starting")
    queue = keys.queue(system.get("/nodes")["data"][0]["id"])
    with redis.Redis.from_url(system.redis.url) as client:
        system.until(lambda: client.llen(queue), within=20, what="its bell has rung", job=job)
        client.rpush(queue, *client.lrange(queue, 0, 0) * 1000)

        system.nodes[1].thaw()
        system.until_step(job, 5)
        system.until(lambda: client.llen(queue) == 0, within=60, what="every message is consumed", job=job)
    done = system.until_settled(job)

    granted = system.counted("footplate_control_claims_granted_total")
    assert granted == 1.0, f"granted {granted} times"
    assert (done["state"], done["attempt"]) == ("succeeded", 1), done
    assert_whole(system.events(job))
