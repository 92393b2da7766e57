"""A job keeps as many checkpoints as it asked for over all of its attempts, in SQL and on the disk."""

from __future__ import annotations

import pytest

from footplate.contract.crash_points import Moment
from tests.support import preload
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import LONG_TOY, System


@pytest.mark.matrix
def test_what_earlier_attempts_saved_goes_too(processes: Processes, redis: RedisServer, mostly_sqlite_url: str) -> None:
    """Although the service dies when the folders are gone and SQL does not know it yet."""
    system = System(processes, redis, mostly_sqlite_url, mortal=True).start()
    preload.die_at(system.preload, {Moment.AFTER_CHECKPOINTS_REMOVED: 1})
    gate = system.gate()
    job = system.submit(training={**LONG_TOY["training"], "save_total_limit": 2}, callbacks=[gate.at(25)])
    system.until_checkpoint(job, 20)
    system.until_reached(job, gate, 25)
    system.kill_training(job)

    def is_settled() -> bool:
        system.revive()
        rows = system.get(f"/jobs/{job}/checkpoints?deleted=true")["data"]
        return system.state(job) == "succeeded" and all(row["status"] != "deleting" for row in rows)

    system.until(is_settled, within=120, what="the job has succeeded, and nothing waits to be removed", job=job)
    assert preload.deaths(system.preload), "nobody died over it"
    rows = system.get(f"/jobs/{job}/checkpoints?deleted=true")["data"]
    kept = {row["path"] for row in rows if row["status"] == "committed"}
    artifacts = system.folder / "artifacts"
    there = {str(path.relative_to(artifacts)) for path in artifacts.glob(f"jobs/{job}/attempts/*/checkpoint-*")}
    assert there == kept
    assert {row["attempt"] for row in rows} == {1, 2}
    newest = [row for row in rows if row["path"] in kept]
    # The last one, and beside it what SQL had when that was saved.
    assert newest[0]["step"] == 120
    assert 2 <= len(newest) <= 3
    assert {row["attempt"] for row in newest} == {2}
