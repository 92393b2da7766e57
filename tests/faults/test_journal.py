"""Tests a journal on a disk that loses, changes or refuses data. Every lost event is reported."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import Process, children
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.system import JSON, LONG_TOY, System, assert_whole
from worker.attempt.journal import is_owned

ENDLESS: JSON = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 100_000, "save_total_limit": 2}}


@pytest.mark.fault(12, without="every line of a journal is checked", red="is not reported as a gap")
@pytest.mark.fault(12, without="lost events are reported as a gap", red="is stored or reported as lost")
def test_torn_journal_lines_are_cut_and_changed_lines_become_gaps(system: System) -> None:
    system.start()
    job = system.submit(ENDLESS)
    system.until_step(job, 5)
    [journal] = (system.folder / "node-1" / "journals").glob("*.journal")

    # The supervisor lives. It reads the waiting events from the journal again once Redis is back.
    system.redis.kill()
    live = spoil(journal, waiting_log(system, job, journal))
    system.redis.start()
    until_reported_as_lost(system, job, live)

    # The worker is dead. Its journal is changed in the middle and torn at the end.
    system.redis.kill()
    dead = waiting_log(system, job, journal)
    system.nodes[1].kill()
    system.until(lambda: not is_owned(journal), within=10, what="the supervisor dies with its worker", job=job)
    spoil(journal, dead)
    os.truncate(journal, journal.stat().st_size - 7)
    last = seqs(journal)[-1]
    system.redis.start()
    system.start_node()
    until_reported_as_lost(system, job, dead)

    system.until(lambda: last_log(system, job)["attempt"] == 2, within=60, what="the second attempt logs", job=job)
    assert system.do(job, "cancel").status_code == 202
    outcome = system.until_settled(job)
    assert (outcome["state"], outcome["attempt"]) == ("cancelled", 2), outcome
    events = system.events(job)
    assert_whole(events)
    first = [event for event in events if (event["attempt"], event["source"]) == (1, 0)]
    assert [event["seq"] for event in first if event["kind"] == "gap"] == [live, dead]
    assert first[-1]["seq"] == last, "the torn line must be cut off"
    journals = system.folder / "node-1" / "journals"
    system.until(lambda: not list(journals.iterdir()), within=20, what="all journals of the node are deleted", job=job)


def last_log(system: System, job: str) -> JSON:
    return [event for event in system.events(job) if event["kind"] == "log"][-1]


def seqs(journal: Path, kind: str = r"\w+") -> list[int]:
    """Returns the seqs of the journal's complete lines."""
    return [int(seq) for seq in re.findall(rb'\{"seq":(\d+),"kind":"%b".*\n' % kind.encode(), journal.read_bytes())]


def waiting_log(system: System, job: str, journal: Path) -> int:
    """Returns the seq of a log that waits for Redis, with other logs before and after it."""
    before = seqs(journal)[-1]

    def fresh() -> list[int]:
        return [seq for seq in seqs(journal, "log") if seq > before]

    system.until(lambda: len(fresh()) > 8, within=60, what="events wait on the disk", job=job)
    return fresh()[4]


def spoil(journal: Path, seq: int) -> int:
    """Changes one digit of the loss in this event, and returns `seq`."""
    data = journal.read_bytes()
    match = re.search(rb'\{"seq":%d,.*?"loss":\d+\.(\d)' % seq, data)
    assert match is not None, f"event {seq} has no loss"
    with journal.open("r+b") as file:
        file.seek(match.start(1))
        file.write(b"%d" % ((int(match[1]) + 5) % 10))
    return seq


def until_reported_as_lost(system: System, job: str, seq: int) -> None:
    def events() -> list[JSON]:
        return [item for item in system.events(job) if (item["attempt"], item["source"], item["seq"]) == (1, 0, seq)]

    system.until(events, within=30, what=f"event {seq} is stored or reported as lost", job=job)
    [event] = events()
    assert event["kind"] == "gap", f"event {seq} is not reported as a gap, but as {event}"
    assert (event["data"]["from"], event["data"]["to"]) == (seq, seq)


class SmallFiles:
    """A stand-in for a full disk where no mount is allowed.

    It limits the file size of the process that has the journal.
    """

    def __init__(self, journals: Path) -> None:
        self.journals = journals

    def fill(self, node: Process) -> None:
        [journal] = self.journals.glob("*.journal")
        self.pid = next(pid for pid in children(node.pid) if _holds(pid, journal))
        self._limit(journal.stat().st_size + 50)

    def free(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _holds(pid: int, path: Path) -> bool:
    # The process may end, or may open and close other files meanwhile.
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if link.samefile(path):
                    return True
    return False


@pytest.fixture
def disk(system: System) -> Iterator[SmallDisk | SmallFiles]:
    """Yields a small disk under the journals of node 1."""
    journals = system.folder / "node-1" / "journals"
    journals.parent.mkdir()
    with small_disk(journals, megabytes=1) as result:
        yield result or SmallFiles(journals)


@pytest.mark.fault(12, without="a full journal ends its attempt", red="goes on in silence")
def test_a_full_journal_disk_fails_the_job_with_that_reason(system: System, disk: SmallDisk | SmallFiles) -> None:
    system.start()
    # Without the protection, training reaches its last step and succeeds, although most of its events are lost.
    job = system.submit({**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 300}})
    system.until_step(job, 3)
    disk.fill() if isinstance(disk, SmallDisk) else disk.fill(system.nodes[1])

    end = system.until_settled(job)
    outcome = (end["state"], end["reason"])
    assert outcome == ("failed", "journal_full"), f"it goes on in silence: {outcome}"
    assert end["error"]["code"] == "journal_full"
    assert re.search("does not take .*(No space left|File too large)", end["error"]["message"]), end["error"]
    events = system.events(job)
    assert_whole(events)
    assert events[-2]["kind"] == "done"

    disk.free()
    end = system.until_settled(system.submit({**LONG_TOY, "training": {"max_steps": 5, "save_strategy": "no"}}))
    assert end["state"] == "succeeded", end
