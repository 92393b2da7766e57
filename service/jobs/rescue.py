"""Declares attempts lost that send no heartbeats or did not stop in time, so that no job stays active forever.

Time is control's own monotonic clock (`clock`, in seconds), so a jump of the wall clock ends no attempt too early.
All leases and deadlines start again when control starts, and after an outage of Redis or SQL.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import inf
from threading import Lock

from sqlalchemy import Connection

from footplate.contract.crash_points import Moment, reached
from footplate.contract.ids import JobId, NodeId
from footplate.contract.lifecycle import JobState, Reason, StopMode
from service.jobs import multi_node
from service.jobs.conclude import AttemptEnd, Effects, conclude, record_loss
from service.jobs.stopping import request_stop, withdraw
from service.settings import ServiceSettings
from service.store import attempts, jobs, nodes
from service.store.row_types import JobRow, NodeRow, SourceRow
from service.store.stored_spec import read_spec

MISSED_BEATS = 3
"""The number of missed heartbeats after which a node counts as lost, if an attempt on it was just declared lost."""


class Timers:
    """The start times of leases and deadlines, by key. The event loop writes them, and a writer thread reads them."""

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}
        self._numbers: dict[Hashable, int] = {}
        self._read: set[Hashable] = set()
        self._all_since = -inf
        self._lock = Lock()

    def renew(self, key: Hashable, number: int, clock: float) -> None:
        """Starts the lease again at a heartbeat. A heartbeat with an old number is ignored."""
        with self._lock:
            if number > self._numbers.get(key, -1):
                self._numbers[key] = number
                # If a beat is read before an outage and answered after it, the lease starts at the end of the outage.
                self._since[key] = max(clock, self._all_since)

    def restart(self, key: Hashable, clock: float) -> None:
        with self._lock:
            self._since[key] = clock

    def elapsed(self, key: Hashable, clock: float) -> float:
        """Returns the seconds since the last heartbeat or restart. For a new key, the first call starts the timer."""
        with self._lock:
            self._read.add(key)
            return clock - self._since.setdefault(key, clock)

    def restart_all(self, clock: float) -> None:
        with self._lock:
            self._all_since = clock
            self._since = dict.fromkeys(self._since, clock)

    def forget_unread(self, *kinds: str) -> None:
        """Drops the timers of these kinds, such as "lease", that `elapsed` has not read since the last call."""
        with self._lock:
            all_keys = {key for key in (*self._since, *self._numbers) if isinstance(key, tuple) and key[0] in kinds}
            for key in all_keys - self._read:
                self._since.pop(key, None)
                self._numbers.pop(key, None)
            self._read -= all_keys


def attempt_key(job_id: str, attempt: int, source: int) -> Hashable:
    return ("lease", job_id, attempt, source)


def node_key(node: str, boot: str) -> Hashable:
    return ("node", node, boot)


def stop_left(job: JobRow, timers: Timers, clock: float, settings: ServiceSettings) -> float:
    """Returns the seconds until a stopping job is killed, which are negative after its deadline.

    They are measured by the monotonic clock, because a jump of the wall clock would kill the job before its checkpoint.
    """
    seconds = settings.stop_seconds if job.stop_mode is not StopMode.KILL else 0.0
    return seconds - timers.elapsed(_stop_key(job), clock)


def _stop_key(job: JobRow) -> Hashable:
    # The deadline is part of the timer's key, because a harder cancel changes the deadline and so starts a new timer.
    return ("stop", job.id, job.attempt, job.stop_deadline)


@dataclass(slots=True)
class RescueEffects(Effects):
    nodes_lost: list[NodeId] = field(default_factory=list)
    silent_on: set[NodeId] = field(default_factory=set)
    """Nodes whose attempts were just lost without heartbeats. They count as lost after `MISSED_BEATS` missed beats."""


def rescue(conn: Connection, timers: Timers, clock: float, now: int, settings: ServiceSettings) -> RescueEffects:
    """Declares attempts and nodes lost if their lease or deadline is over, and returns the changes."""
    effects = RescueEffects()
    nodes_by_id = {node.id: node for node in nodes.all_nodes(conn)}
    for job in jobs.active(conn):
        sources = attempts.sources_of(conn, job.id, job.attempt)
        _ActiveJob(conn, job, sources, nodes_by_id, timers, clock, now, settings, effects).decide()
    for node in nodes_by_id.values():
        if node.lost:
            continue
        # The job must not be placed on this node again, even if the node's last heartbeat came after the attempt's.
        limit_seconds = MISSED_BEATS * settings.beat_seconds if node.id in effects.silent_on else settings.lease_seconds
        if timers.elapsed(node_key(node.id, node.boot), clock) > min(limit_seconds, settings.lease_seconds):
            nodes.change(conn, node.id, lost=True)
            effects.nodes_lost.append(node.id)
    timers.forget_unread("lease", "node", "claim", "start", "stop", "end", "running", "report")
    if effects.jobs:
        reached(Moment.BEFORE_RESCUE_COMMITS)
    return effects


class _ActiveJob:
    """One active job, with all checks of its leases and deadlines."""

    def __init__(
        self, conn: Connection, job: JobRow, sources: list[SourceRow], node_rows: Mapping[NodeId, NodeRow],
        timers: Timers, clock: float, now: int, settings: ServiceSettings, rescued: RescueEffects,
    ) -> None:  # fmt: skip
        self.conn, self.job, self.node_rows, self.timers, self.clock = conn, job, node_rows, timers, clock
        self.sources = [source for source in sources if source.ended_at is None]
        self.is_ending = len(sources) > len(self.sources) > 0 and multi_node.has_to_end(sources)
        self.nodes = len(sources)
        self.now, self.settings, self.rescued = now, settings, rescued

    def decide(self) -> None:
        job, claimed_sources = self.job, [source for source in self.sources if source.claim is not None]
        unclaimed_sources = [source for source in self.sources if source.claim is None]
        if job.runs_elsewhere:
            # Each report writes an event. So each starts a new timer, whose key contains the newest event's number.
            if self._elapsed(("report", job.id, job.last_no)) > self.settings.external_seconds:
                self._lose(f"no report came for {self.settings.external_seconds:g} s")
            return
        is_starting = job.state is JobState.STARTING
        if is_starting and unclaimed_sources and (why := self._why_not_claimed(unclaimed_sources)) is not None:
            self._give_back(why)
        elif silent_sources := [source for source in claimed_sources if self._is_silent(source)]:
            self.rescued.silent_on.update(source.node for source in silent_sources)
            self._lose(f"no heartbeat from {self._names(silent_sources)} for {self.settings.lease_seconds:g} s")
        elif not is_starting and not claimed_sources:
            self._lose("no node holds it any more")
        elif is_starting and claimed_sources and self._overran_its_start():
            self._lose("it did not report in time that training had started", Reason.STALLED)
        elif job.state is JobState.STOPPING and self._overran_its_stop():
            self._lose("it did not stop in time")
        elif self.is_ending and self._overran_its_end():
            self._lose(f"{self._names(self.sources)} did not end in time after the job's other nodes")
        elif job.state is JobState.RUNNING and self._is_out_of_time():
            self._stop_for_time()

    def _elapsed(self, key: Hashable) -> float:
        return self.timers.elapsed(key, self.clock)

    def _why_not_claimed(self, unclaimed_sources: list[SourceRow]) -> str | None:
        """Returns the reason for which the attempt must be placed again, or None while it may still be claimed."""
        if self._waited_for_claims():
            by = f" by {self._named(unclaimed_sources)}" if self.nodes > 1 else ""
            return f"was not claimed within {self.settings.claim_seconds:g} s{by}"
        lost_sources = [
            source for source in unclaimed_sources if (node := self.node_rows.get(source.node)) is None or node.lost
        ]
        return f"was not claimed: no heartbeat from {self._named(lost_sources)}" if lost_sources else None

    def _waited_for_claims(self) -> bool:
        return self._elapsed(("claim", self.job.id, self.job.attempt)) > self.settings.claim_seconds

    def _is_silent(self, source: SourceRow) -> bool:
        return self._elapsed(attempt_key(source.job_id, source.attempt, source.source)) > self.settings.lease_seconds

    def _overran_its_start(self) -> bool:
        """Returns True if the attempt has taken too long to start.

        Such an attempt's supervisor hangs, because a working supervisor would have reported that the training hangs.
        """
        waited_seconds = self._elapsed(("start", self.job.id, self.job.attempt))
        if waited_seconds <= self.settings.start_seconds:
            return False
        return waited_seconds > (read_spec(self.job.spec)["resources"].get("stall_limit") or 0)

    def _overran_its_stop(self) -> bool:
        return stop_left(self.job, self.timers, self.clock, self.settings) < -self.settings.kill_seconds

    def _overran_its_end(self) -> bool:
        """Returns True if some nodes of the attempt have ended long ago, and the others still train."""
        waited_seconds = self._elapsed(("end", self.job.id, self.job.attempt))
        return waited_seconds > self.settings.stop_seconds + self.settings.kill_seconds

    def _names(self, sources: list[SourceRow]) -> str:
        """Returns the names of the nodes of these sources, or "it" if the job has only one node."""
        return "it" if self.nodes == 1 else self._named(sources)

    def _named(self, sources: list[SourceRow]) -> str:
        return ", ".join(node.name if (node := self.node_rows.get(source.node)) else source.node for source in sources)

    def _is_out_of_time(self) -> bool:
        if self.job.time_limit_ms is None:
            return False
        seconds_left = (self.job.time_limit_ms - self.job.running_ms) / 1000
        return self._elapsed(("running", self.job.id, self.job.attempt)) > seconds_left

    def _give_back(self, why: str) -> None:
        """Queues the job again without using up a retry. A later claim of the old attempt is denied."""
        job = jobs.lock(self.conn, self.job.id)
        if job is None or (job.state, job.attempt) != (JobState.STARTING, self.job.attempt):
            # Another control or the user has changed the job meanwhile. Ending its sources now would end another
            # attempt.
            return
        withdraw(self.conn, job, self.now)
        jobs.move(
            self.conn, job.id, to=JobState.QUEUED, expect=[JobState.STARTING], attempt=job.attempt, fence=job.fence,
            reason=Reason.NOT_CLAIMED, message=f"attempt {job.attempt} {why}", now=self.now,
        )  # fmt: skip
        self.rescued.jobs.add(job.id)

    def _lose(self, why: str, reason: Reason = Reason.NODE_LOST) -> None:
        lose(self.conn, self.job.id, self.job.attempt, why, self.now, self.settings, self.rescued, reason)

    def _stop_for_time(self) -> None:
        job = jobs.lock(self.conn, self.job.id)
        if job is None or (job.state, job.attempt) != (JobState.RUNNING, self.job.attempt):
            return
        request_stop(
            self.conn, job, desired=job.desired, reason=Reason.TIME_LIMIT, mode=StopMode.CHECKPOINT,
            stop_seconds=self.settings.stop_seconds, now=self.now,
            message=f"the time limit of {(job.time_limit_ms or 0) / 1000:g} s is over: the job saves and stops",
        )  # fmt: skip
        self.rescued.jobs.add(job.id)
        self.rescued.stop_requested.add(job.id)


def lose(
    conn: Connection,
    job_id: JobId,
    attempt: int,
    why: str,
    now: int,
    settings: ServiceSettings,
    effects: Effects,
    reason: Reason = Reason.NODE_LOST,
) -> None:
    """Ends an attempt as lost, unless it has ended already.

    Stores gap events for its missing events, moves its job to the next state, and adds these changes to `effects`.
    If a node has already reported the end of the attempt, that end is used instead.
    """
    job = jobs.lock(conn, job_id)
    if job is None or job.attempt != attempt or not job.state.holds_slots:
        return
    record_loss(conn, job, now)
    row = attempts.get(conn, job_id, attempt)
    if (known_end := multi_node.known_end(attempts.sources_of(conn, job_id, attempt))) is not None:
        end = AttemptEnd.of(known_end)
    else:
        names = ", ".join(attempts.nodes_of(conn, [job_id]).get(job_id, [])) or "its node"
        where = "" if job.runs_elsewhere else f" on {names}"
        end = AttemptEnd(
            ending="lost",
            reason=reason,
            # The running time as the supervisor last reported it, because a lost attempt reports nothing more.
            running_ms=row.running_ms if row else 0,
            error={"code": reason, "message": f"attempt {attempt}{where} was lost: {why}"},
        )
    conclude(conn, job, end, now, effects, retry_backoff_seconds=settings.retry_backoff_seconds)
    effects.counts.attempts_lost += 1
