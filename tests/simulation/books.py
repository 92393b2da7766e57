"""What must hold, read from SQL after every commit; and what was promised to users and workers, kept beside it.

an acknowledged job is never lost                      states move by the table only
at most one grant per (job, attempt, source)           fences, attempts, versions and watermarks rise
at most one open attempt of a job, and it is current   a job that was cancelled succeeds only after a resume
`no` is dense, in commit order                         a checkpoint is committed by the current attempt alone
per source, seq 1..last once each, but for gaps        what is stored is what training said
nobody hears "stored" of what is not                   no slot is given to two
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from contract.events import SERVICE_SOURCE, Kind
from contract.lifecycle import JobState, may_move
from tests.simulation.world import Violation, World

ACTIVE = {state.value for state in JobState if state.holds_slots}
TERMINAL = {state.value for state in JobState if state.is_terminal}


class Job(NamedTuple):
    id: str
    state: str
    reason: str
    desired: str
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
    done: bool

    @property
    def key(self) -> SourceKey:
        return self.job_id, self.attempt, self.source


SourceKey = tuple[str, int, int]
Rows = Callable[[str], list[tuple[Any, ...]]]
Said = list[tuple[str, dict[str, Any]]]
"""Kind and data of each event of one claim, as training said them: seq 1 first."""


@dataclass
class History:
    """How far one job's events have been read."""

    no: int = 0
    seqs: dict[tuple[int, int], int] = field(default_factory=dict)
    gaps: dict[tuple[int, int], list[tuple[int, int | None]]] = field(default_factory=dict)


class Books:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: Rows = lambda _: []
        self.changes: Callable[[], int | None] = lambda: None
        self.jobs: dict[str, Job] = {}
        self.sources: dict[SourceKey, Source] = {}
        self.said: dict[str, Said] = {}
        self.slots: dict[str, int] = {}
        self.acknowledged: set[str] = set()
        self.deleted: set[str] = set()
        self.cancelled: set[str] = set()
        self.granted: dict[SourceKey, str] = {}
        self.commits = 0
        self.was_restored = False
        self._histories: dict[str, History] = {}
        self._checkpoints: set[str] = set()
        self._fences: dict[tuple[str, int], int] = {}
        self._seen: int | None = None

    # What others tell

    def promise(self, job: str) -> None:
        """A user has its id."""
        self.acknowledged.add(job)

    def told_watermark(self, key: str, value: int) -> None:
        """Control is about to say that so much is stored."""
        job, attempt, source = key.removeprefix("fp:mark:").split(":")
        self._is_stored((job, int(attempt), int(source)), value)

    def heard_on(self, key: str, message: bytes) -> None:
        if b'"type":"grant"' in message:
            grant = json.loads(message)
            part = grant["job"], grant["attempt"], grant["source"]
            claim = self.granted.setdefault(part, grant["claim"])
            self._check(
                claim == grant["claim"],
                "{} attempt {} is granted twice, to {} and {}",
                grant["job"],
                grant["attempt"],
                claim,
                grant["claim"],
            )

    def lets_go(self, key: SourceKey, claim: str, last: int, *, is_superseded: bool) -> None:
        """A journal is about to be deleted."""
        part = self._now().get(key)
        if part is None:
            return
        if is_superseded:
            is_current = part.claim == claim and part.ended_at is None
            self._check(not is_current, "{} attempt {} is told that it is superseded, and is not", *key[:2])
        else:
            self._check(
                part.watermark >= last,
                "the journal of {} attempt {} goes at seq {}, and SQL has {}",
                *key[:2],
                last,
                part.watermark,
            )

    def _is_stored(self, key: SourceKey, mark: int) -> None:
        part = self._now().get(key)
        if part is not None:
            self._check(
                mark <= part.watermark,
                "{} attempt {} hears that {} is stored, and SQL has {}",
                key[0],
                key[1],
                mark,
                part.watermark,
            )

    # What SQL says

    def check(self) -> None:
        """Everything, as it is now."""
        changes = self.changes()
        if changes is not None and changes == self._seen:
            return
        self._seen = changes
        self.commits += 1
        jobs = {
            row[0]: Job(*row)
            for row in self.rows("SELECT id, state, reason, desired, attempt, fence, version, last_no FROM jobs")
        }
        before, self.jobs = self.jobs, jobs
        sources, self.sources = self.sources, self._now()
        for job in jobs.values():
            if job is not before.get(job.id) and job != before.get(job.id):
                self._look_at(job, before.get(job.id))
        for gone in before.keys() - jobs.keys():
            self._check(gone in self.deleted, "{} is gone, and nobody deleted it", gone)
        for key, part in self.sources.items():
            if part != (known := sources.get(key)) and known is not None:
                self._check(part.watermark >= known.watermark, "the watermark of {} attempt {} fell", *key[:2])
                self._check(known.claim in (None, part.claim), "{} attempt {} changed hands", *key[:2])
        self._look_at_slots()
        self._look_at_checkpoints()

    def _now(self) -> dict[SourceKey, Source]:
        statement = (
            "SELECT job_id, attempt, source, node, slots, claim, watermark, ended_at, done IS NOT NULL FROM sources"
        )
        return {(row[0], row[1], row[2]): Source(*row) for row in self.rows(statement)}

    def _look_at(self, job: Job, before: Job | None) -> None:
        if before is None:
            self._check(job.state == JobState.QUEUED, "{} began as {}", job.id, job.state)
        elif before.state != job.state or before.version != job.version:
            self.world.say(
                "sql", "{} {} -> {} ({}), attempt {}", job.id, before.state, job.state, job.reason, job.attempt
            )
            self._check(_is_allowed(before.state, job.state), "{} moved from {} to {}", job.id, before.state, job.state)
        if before is not None:
            rises = (job.attempt, job.fence, job.version) >= (before.attempt, before.fence, before.version)
            self._check(rises and job.last_no >= before.last_no, "{}: {} became {}", job.id, before, job)
            has_new_fence = (job.fence > before.fence) == (job.attempt > before.attempt)
            self._check(has_new_fence, "{} attempt {} has fence {}, as {} had", job.id, job.attempt, job.fence, before)
        if job.id in self.cancelled:
            self._check(job.state != JobState.SUCCEEDED, "{} succeeded after its cancel was acknowledged", job.id)
        self._look_at_attempts(job)
        if before is None or job.last_no != before.last_no:
            self._read(job)

    def _look_at_attempts(self, job: Job) -> None:
        found = self.rows(
            f"SELECT attempt, fence, ended_at IS NULL FROM attempts WHERE job_id = '{job.id}' ORDER BY attempt"
        )
        fences = [row[1] for row in found]
        self._check(fences == sorted(set(fences)), "the fences of {} are {}", job.id, fences)
        open_ones = [row[0] for row in found if row[2]]
        wanted = [job.attempt] if job.state in ACTIVE else []
        self._check(
            open_ones == wanted, "{} is {} at attempt {}, and open are {}", job.id, job.state, job.attempt, open_ones
        )

    def _look_at_slots(self) -> None:
        taken: Counter[str] = Counter()
        for part in self.sources.values():
            if part.ended_at is None:
                taken[part.node] += part.slots
                job = self.jobs[part.job_id]
                self._check(
                    job.attempt == part.attempt and job.state in ACTIVE,
                    "{} attempt {} holds slots, and is over",
                    *part.key[:2],
                )
        for node, slots in taken.items():
            self._check(
                slots <= self.slots[node], "{} has {} slots, and {} are given away", node, self.slots[node], slots
            )

    def _look_at_checkpoints(self) -> None:
        for id_, job_id, attempt, path in self.rows("SELECT id, job_id, attempt, path FROM checkpoints"):
            if id_ in self._checkpoints:
                continue
            self._checkpoints.add(id_)
            job = self.jobs[job_id]
            ours = [part for part in self.sources.values() if part.key[:2] == (job_id, attempt)]
            is_current = attempt == job.attempt and any(
                part.claim and path.startswith(f"jobs/{job_id}/attempts/{attempt}/") for part in ours
            )
            self._check(
                is_current,
                "{} is at attempt {}, and {} of attempt {} was committed",
                job_id,
                job.attempt,
                path,
                attempt,
            )

    def _read(self, job: Job) -> None:
        history = self._histories.setdefault(job.id, History())
        found = self.rows(
            "SELECT no, attempt, source, seq, kind, data FROM events"
            f" WHERE job_id = '{job.id}' AND no > {history.no} ORDER BY no"
        )
        for no, attempt, source, seq, kind, data in found:
            self._check(no == history.no + 1, "event {} of {} follows {}", no, job.id, history.no)
            history.no = no
            if source == SERVICE_SOURCE:
                self._note_gap(history, attempt, kind, data)
            else:
                self._is_next(job, history, attempt, source, seq)
                self._is_true(job, attempt, source, seq, kind, data)
        self._check(history.no == job.last_no, "{} counts {} events and has {}", job.id, job.last_no, history.no)

    def _note_gap(self, history: History, attempt: int, kind: str, data: str) -> None:
        if kind == Kind.GAP:
            said = json.loads(data)
            history.gaps.setdefault((attempt, said["source"]), []).append((said["from"], said["to"]))

    def _is_next(self, job: Job, history: History, attempt: int, source: int, seq: int) -> None:
        key = attempt, source
        last = history.seqs.get(key, 0)
        declared = history.gaps.get(key, [])
        missing = range(last + 1, seq)
        is_declared = all(any(first <= one <= (to or one) for first, to in declared) for one in missing)
        self._check(
            seq > last and is_declared,
            "{} attempt {}.{}: seq {} follows {}, declared are {}",
            job.id,
            attempt,
            source,
            seq,
            last,
            declared,
        )
        history.seqs[key] = seq

    def _is_true(self, job: Job, attempt: int, source: int, seq: int, kind: str, data: str) -> None:
        part = self.sources.get((job.id, attempt, source))
        self._check(part is not None and part.claim is not None, "{} attempt {} was never claimed", job.id, attempt)
        assert part is not None
        said = self.said[part.claim or ""]
        self._check(seq <= len(said), "{} attempt {}: seq {} was never said", job.id, attempt, seq)
        wanted = said[seq - 1]
        is_reworded = wanted[0] == Kind.STATE and kind == Kind.NOTE
        self._check(
            is_reworded or (kind, json.loads(data)) == wanted,
            "{} attempt {}: seq {} is {} {} and was {}",
            job.id,
            attempt,
            seq,
            kind,
            data,
            wanted,
        )

    # The end

    def close(self) -> None:
        """Once more, from the beginning, when all is quiet."""
        for job in self.acknowledged - self.deleted:
            self._check(job in self.jobs, "{} was acknowledged, and is not there", job)
        for job_id, job in self.jobs.items():
            numbers = [row[0] for row in self.rows(f"SELECT no FROM events WHERE job_id = '{job_id}' ORDER BY no")]
            self._check(numbers == list(range(1, job.last_no + 1)), "the numbers of {} are {}", job_id, numbers)

    def _check(self, holds: bool, what: str, *args: object) -> None:
        if not holds:
            named = [self.world.name(arg) if isinstance(arg, str) else arg for arg in args]
            raise Violation(what.format(*named))


def _is_allowed(old: str, new: str) -> bool:
    """One move of the table in one commit; or two, where a finish comes before anybody said that it runs."""
    before, after = JobState(old), JobState(new)
    through_running = may_move(before, JobState.RUNNING) and may_move(JobState.RUNNING, after)
    return old == new or may_move(before, after) or through_running
