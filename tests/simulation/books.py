"""Checks in SQL after every commit that the promises to users and workers are kept.

- An acknowledged job is never lost.
- A job changes its state only as the table of states allows.
- Each part of an attempt is granted at most once.
- Fences, attempts, versions and watermarks never decrease.
- A job has at most one open attempt, which is its current attempt.
- A cancelled job succeeds only after a resume.
- A slot is never given to two parts.
- Only the current attempt commits a checkpoint.
- Events are reported as stored only if SQL has them.
- An attempt is lost only if it was silent for a lease.
- Rotation deletes no checkpoint that is among the newest, or whose attempt is the newest with a checkpoint.
- Every history is complete, as history.py checks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from footplate.contract import redis_keys
from footplate.contract.ids import ClaimId
from footplate.contract.lifecycle import JobState, may_move
from tests.simulation.history import History, Said
from tests.simulation.world import World

ACTIVE = {state.value for state in JobState if state.holds_slots}


class Job(NamedTuple):
    id: str
    state: str
    reason: str
    attempt: int
    fence: int
    version: int
    last_no: int


class Source(NamedTuple):
    job_id: str
    attempt: int
    source: int
    node: str
    slots: int
    claim: str | None
    watermark: int
    ended_at: int | None
    is_done: bool


SourceKey = tuple[str, int, int]
Rows = Callable[[str], list[tuple[Any, ...]]]


@dataclass
class ReceivedBeats:
    """The heartbeats that one control has received. An attempt counts as silent only from `since` on."""

    since: float
    """The time when the control began, or last found Redis or SQL unreachable before the current rescue."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _read: dict[str, float] = field(default_factory=dict)
    _answered: dict[str, float] = field(default_factory=dict)

    def reads(self, claim: str, number: int, clock: float) -> None:
        """Records a heartbeat, if its number is new."""
        if number > self._numbers.get(claim, -1):
            self._numbers[claim], self._read[claim] = number, clock

    def answers(self, claim: str) -> None:
        if claim in self._read:
            self._answered[claim] = self._read.pop(claim)

    def last(self, claim: str) -> float:
        """Returns the time when control read the last heartbeat that it has answered."""
        return max(self.since, self._answered.get(claim, 0.0))


class Books:
    def __init__(self, world: World, lease_seconds: float) -> None:
        self.world, self.must = world, world.must
        self.lease_seconds = lease_seconds
        self.rows: Rows = lambda _: []
        self.changes: Callable[[], int | None] = lambda: None
        self.jobs: dict[str, Job] = {}
        self.sources: dict[SourceKey, Source] = {}
        self.sent_events: dict[str, Said] = {}
        """Events that training sent under each claim, seq 1 first."""
        self.slots: dict[str, int] = {}
        self.acknowledged: set[str] = set()
        self.deleted: set[str] = set()
        self.cancelled: set[str] = set()
        self.commits = 0
        self.received = ReceivedBeats(0.0)
        """The heartbeats of the control that acts at this moment."""
        self._granted: dict[SourceKey, str] = {}
        self._histories: dict[str, History] = {}
        self._checkpoints: set[str] = set()
        self._going: set[str] = set()
        self.keep: dict[str, int] = {}
        """The number of checkpoints that each job keeps."""
        self._ended: set[tuple[str, int]] = set()
        self._seen: int | None = None

    # Messages to and from control

    def on_read(self, raw: bytes) -> None:
        if b'"type":"node_beat"' not in raw:
            message = json.loads(raw)
            self.received.reads(message["claim"], message.get("number", 0), self.world.clock)

    def on_push(self, key: str, message: bytes) -> None:
        if key == redis_keys.INBOX:
            return
        # A reply without a number answers no heartbeat. Control may not have processed the last heartbeat yet.
        if b'"type":"attempt_reply"' not in message or json.loads(message)["number"]:
            self.received.answers(key.removeprefix(redis_keys.reply(ClaimId(""))))
        if b'"type":"grant"' in message:
            grant = json.loads(message)
            part, claim = (grant["job"], grant["attempt"], grant["source"]), grant["claim"]
            first = self._granted.setdefault(part, claim)
            self.must(claim == first, "{} attempt {} is granted twice, to {} and {}", *part[:2], first, claim)

    def says_stored(self, key: str, mark: int) -> None:
        job, attempt, source = key.removeprefix("fp:mark:").split(":")
        part = self._now().get((job, int(attempt), int(source)))
        if part is not None:
            what = "{} attempt {} got an acknowledgement for {}, and SQL has {}"
            self.must(mark <= part.watermark, what, job, attempt, mark, part.watermark)

    def on_journal_deletion(self, key: SourceKey, claim: str, last: int, *, is_superseded: bool) -> None:
        """Checks that a worker may delete a journal, which it is about to do."""
        part = self._now().get(key)
        if part is None:
            return
        if is_superseded:
            is_current = part.claim == claim and part.ended_at is None
            self.must(not is_current, "{} attempt {} got the reply that it is superseded, and is not", *key[:2])
        else:
            what = "the journal of {} attempt {} is deleted at seq {}, and SQL has {}"
            self.must(part.watermark >= last, what, *key[:2], last, part.watermark)

    # Rows in SQL

    def check(self) -> None:
        """Checks all promises on the present rows."""
        changes = self.changes()
        if changes is not None and changes == self._seen:
            return
        self._seen = changes
        self.commits += 1
        before, sources = self.jobs, self.sources
        rows = self.rows("SELECT id, state, reason, attempt, fence, version, last_no FROM jobs")
        self.jobs, self.sources = {row[0]: Job(*row) for row in rows}, self._now()
        for job in self.jobs.values():
            if job != before.get(job.id):
                self._look_at(job, before.get(job.id))
        for missing in before.keys() - self.jobs.keys():
            self.must(missing in self.deleted, "{} is gone, and nobody deleted it", missing)
        for key, part in self.sources.items():
            if (earlier := sources.get(key)) is not None and earlier != part:
                self.must(part.watermark >= earlier.watermark, "the watermark of {} attempt {} fell", *key[:2])
                self.must(earlier.claim in (None, part.claim), "{} attempt {} changed hands", *key[:2])
        self._look_at_slots()
        self._look_at_checkpoints()

    def _now(self) -> dict[SourceKey, Source]:
        names = "job_id, attempt, source, node, slots, claim, watermark, ended_at, done IS NOT NULL"
        return {(row[0], row[1], row[2]): Source(*row) for row in self.rows(f"SELECT {names} FROM sources")}

    def _look_at(self, job: Job, before: Job | None) -> None:
        if before is None:
            self.must(job.state == JobState.QUEUED, "{} began as {}", job.id, job.state)
        else:
            self._look_at_the_move(job, before)
        if job.id in self.cancelled:
            self.must(job.state != JobState.SUCCEEDED, "{} succeeded after its cancel was acknowledged", job.id)
        if before is None or job.last_no != before.last_no:
            self._read(job)
        self._look_at_attempts(job)

    def _look_at_the_move(self, job: Job, before: Job) -> None:
        if job.version != before.version:
            outcome = before.state, job.state, job.reason, job.attempt
            self.world.say("sql", "{} {} -> {} ({}), attempt {}", job.id, *outcome)
        self.must(_is_allowed(before.state, job.state), "{} moved from {} to {}", job.id, before.state, job.state)
        rises = all(now >= earlier for now, earlier in zip(job[3:], before[3:], strict=True))
        is_fenced = (job.fence > before.fence) == (job.attempt > before.attempt)
        self.must(rises and is_fenced, "{} went from {} to {}", job.id, before[3:], job[3:])

    def _look_at_attempts(self, job: Job) -> None:
        columns = "attempt, fence, ended_at IS NULL, ending, error"
        rows = self.rows(f"SELECT {columns} FROM attempts WHERE job_id = '{job.id}' ORDER BY attempt")
        fences = [fence for _, fence, *_ in rows]
        self.must(fences == sorted(set(fences)), "the fences of {} are {}", job.id, fences)
        open_ones = [attempt for attempt, _, is_open, *_ in rows if is_open]
        expected = [job.attempt] if job.state in ACTIVE else []
        what = "{} is {} at attempt {}, and open are {}"
        self.must(open_ones == expected, what, job.id, job.state, job.attempt, open_ones)
        for attempt, _, is_open, ending, error in rows:
            if not is_open and (job.id, attempt) not in self._ended:
                self._ended.add((job.id, attempt))
                if ending == "lost":
                    self._look_at_the_loss(job, attempt, error)

    def _look_at_the_loss(self, job: Job, attempt: int, error: str) -> None:
        parts = [part for part in self.sources.values() if part[:2] == (job.id, attempt) and part.claim]
        for part in parts:
            is_said = part.is_done or self._histories[job.id].is_gap(attempt, part.source, part.watermark + 1)
            self.must(is_said, "{} attempt {} is lost, and no gap says what is missing", job.id, attempt)
        if "no heartbeat from it" in error:
            silent = max(self.world.clock - self.received.last(part.claim or "") for part in parts)
            what = "{} attempt {} is called silent after {} s"
            self.must(silent >= self.lease_seconds - 0.01, what, job.id, attempt, round(silent, 3))

    def _look_at_slots(self) -> None:
        used_slots: Counter[str] = Counter()
        for part in self.sources.values():
            if part.ended_at is None:
                used_slots[part.node] += part.slots
                job = self.jobs[part.job_id]
                is_current = job.attempt == part.attempt and job.state in ACTIVE
                self.must(is_current, "{} attempt {} holds slots, and is over", *part[:2])
        for node, slots in used_slots.items():
            self.must(slots <= self.slots[node], "{} has {} slots, and gave away {}", node, self.slots[node], slots)

    def _look_at_checkpoints(self) -> None:
        names = "id, job_id, attempt, path, status"
        for id_, job_id, attempt, path, status in self.rows(f"SELECT {names} FROM checkpoints"):
            if status == "deleting" and id_ not in self._going:
                self._going.add(id_)
                self._look_at_what_goes(self.jobs[job_id], attempt)
            if id_ not in self._checkpoints:
                self._checkpoints.add(id_)
                current = self.jobs[job_id].attempt
                is_ours = attempt == current and path.startswith(f"jobs/{job_id}/attempts/{attempt}/")
                self.must(is_ours, "{} is at attempt {}, and {} was committed", job_id, current, path)

    def _look_at_what_goes(self, job: Job, attempt: int) -> None:
        rows = self.rows(f"SELECT attempt FROM checkpoints WHERE job_id = '{job.id}' AND status = 'committed'")
        newest = max((row[0] for row in rows), default=0)
        self.must(attempt < newest, "{} loses what attempt {} saved, the newest to do so", job.id, attempt)
        self.must(len(rows) >= self.keep[job.id], "{} keeps {}, not {}", job.id, len(rows), self.keep[job.id])
        resumes = job.state in ACTIVE and newest < job.attempt
        self.must(not resumes, "{} loses what attempt {} was offered", job.id, job.attempt)

    def _read(self, job: Job) -> None:
        history = self._histories.setdefault(job.id, History(job.id, self.must))
        names = "no, attempt, source, seq, kind, data"
        rows = self.rows(f"SELECT {names} FROM events WHERE job_id = '{job.id}' AND no > {history.last_no} ORDER BY no")
        for no, attempt, source, seq, kind, data in rows:
            part = self.sources.get((job.id, attempt, source))
            history.read(no, attempt, source, seq, kind, data, self.sent_events.get((part and part.claim) or "", []))
        self.must(history.last_no == job.last_no, "{} counts {} events, has {}", job.id, job.last_no, history.last_no)

    # The end

    def going(self) -> list[str]:
        """Returns the checkpoints whose folders are not deleted yet."""
        return [row[0] for row in self.rows("SELECT path FROM checkpoints WHERE status = 'deleting'")]

    def gone(self) -> list[str]:
        return [row[0] for row in self.rows("SELECT path FROM checkpoints WHERE status = 'deleted'")]

    def forget_rows_after_a_restore(self) -> None:
        """Replaces the known rows by those of a restored database."""
        rows = self.rows("SELECT id, state, reason, attempt, fence, version, last_no FROM jobs")
        self.jobs, self.sources = {row[0]: Job(*row) for row in rows}, self._now()
        self.acknowledged &= self.jobs.keys()
        self._checkpoints = {row[0] for row in self.rows("SELECT id FROM checkpoints")}
        self._histories.clear()
        self._seen = None

    def close(self) -> None:
        """Checks every job from its first event on, after the simulation has ended."""
        for job_id in self.acknowledged - self.deleted:
            self.must(job_id in self.jobs, "{} was acknowledged, and is not there", job_id)
        for job_id, job in self.jobs.items():
            numbers = [row[0] for row in self.rows(f"SELECT no FROM events WHERE job_id = '{job_id}' ORDER BY no")]
            self.must(numbers == list(range(1, job.last_no + 1)), "the numbers of {} are {}", job_id, numbers)
            if self.world.rotates:
                self._check_kept_checkpoints(job_id)

    def _check_kept_checkpoints(self, job_id: str) -> None:
        """Checks that only the newest attempt may have too many checkpoints, because its training may have died."""
        rows = self.rows(
            f"SELECT attempt FROM checkpoints WHERE job_id = '{job_id}' AND status = 'committed' ORDER BY no DESC"
        )
        older = [attempt for (attempt,) in rows[self.keep[job_id] :] if attempt < rows[0][0]]
        self.must(not older, "{} keeps {}, and {} checkpoints of older attempts", job_id, self.keep[job_id], len(older))


def _is_allowed(old: str, new: str) -> bool:
    """Returns True if the table of states allows the change, also if the state `running` was skipped in one commit."""
    before, after = JobState(old), JobState(new)
    through_running = may_move(before, JobState.RUNNING) and may_move(JobState.RUNNING, after)
    return old == new or may_move(before, after) or through_running
