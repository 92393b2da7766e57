"""Anything in any order: users, workers that die, repeat and come late, nodes that come and go, time that passes.

Whatever happens, the invariants of RELIABILITY.md §6 hold after every step, on both databases.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from contract.errors import Conflict
from contract.ids import JobId, NodeId
from contract.lifecycle import JobState, StopMode, may_move
from contract.messages import Grant
from service.store import attempts, checkpoints
from service.store.database import Database
from service.store.rows import JobRow
from tests.conformance.acting import SETTINGS, Stage, Worker


class Life(RuleBasedStateMachine):
    """A few jobs on a few small nodes, so that everything meets everything."""

    db: Database
    jobs = Bundle("jobs")
    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(self.db)
        self.mine: list[JobId] = []
        self.seen: dict[JobId, JobRow] = {}
        self.grants: dict[tuple[JobId, int, int], str] = {}
        self.cancelled: set[JobId] = set()
        self.nodes: list[NodeId] = []
        self.pool = f"pool-{id(self)}"

    # Users

    @rule(target=jobs, nodes=st.integers(1, 2), attempts=st.integers(1, 4))
    def submit(self, nodes: int, attempts: int) -> JobId:
        job = self.stage.submit(nodes=nodes, resources={"pool": self.pool}, retry={"max_attempts": attempts})
        self.mine.append(job)
        return job

    @rule(job=jobs, mode=st.sampled_from(StopMode))
    def cancel(self, job: JobId, mode: StopMode) -> None:
        try:
            row = self.stage.cancel(job, mode)
        except Conflict:
            return
        assert row.state in (JobState.CANCELLED, JobState.STOPPING)
        self.cancelled.add(job)

    @rule(job=jobs)
    def pause(self, job: JobId) -> None:
        with suppress(Conflict):
            assert self.stage.pause(job).state in (JobState.PAUSED, JobState.STOPPING)

    @rule(job=jobs)
    def resume(self, job: JobId) -> None:
        try:
            self.stage.resume(job)
        except Conflict:
            return
        self.cancelled.discard(job)

    # Nodes and control

    @rule(slots=st.integers(1, 2))
    def a_node_comes(self, slots: int) -> None:
        if len(self.nodes) < 3:
            self.nodes.append(self.stage.node(slots=slots, pool=self.pool))

    @precondition(lambda self: self.nodes)
    @rule(which=st.integers(0, 2), boot=st.sampled_from(["boot-1", "boot-2", "boot-3"]), draining=st.booleans())
    def a_node_beats(self, which: int, boot: str, draining: bool) -> None:
        node = self.nodes[which % len(self.nodes)]
        self.stage.beat_node(node, boot, slots=2, pool=self.pool, draining=draining)

    @rule()
    def control_places(self) -> None:
        self.stage.place()

    @rule(seconds=st.sampled_from([0.5, 5, SETTINGS.lease_seconds / 2, SETTINGS.lease_seconds + 1]))
    def time_passes(self, seconds: float) -> None:
        self.stage.rescue()
        self.stage.later(seconds)
        self.stage.rescue()

    @rule(hours=st.integers(-2, 2))
    def the_wall_clock_jumps(self, hours: int) -> None:
        self.stage.rescue()
        self.stage.now += hours * 3_600_000
        assert self.stage.rescue().lost == 0

    # Workers

    @rule(target=workers, job=jobs, source=st.integers(0, 1))
    def a_worker_claims(self, job: JobId, source: int) -> Worker:
        worker = self.stage.ask(job, source)
        if isinstance(worker.answer, Grant):
            key = (job, worker.attempt, worker.answer.source)
            assert self.grants.setdefault(key, worker.claim) == worker.claim
        return worker

    @rule(worker=workers)
    def it_claims_again(self, worker: Worker) -> None:
        again = worker.ask_again()
        if isinstance(again, Grant):
            assert self.grants.setdefault((worker.job, worker.attempt, again.source), worker.claim) == worker.claim

    @rule(worker=workers, again=st.booleans())
    def it_beats(self, worker: Worker, again: bool) -> None:
        worker.number -= again
        worker.beat()

    @rule(worker=workers)
    def it_says_that_it_runs(self, worker: Worker) -> None:
        worker.says_running()

    @rule(worker=workers, step=st.integers(1, 9))
    def it_checkpoints(self, worker: Worker, step: int) -> None:
        worker.checkpoints(step)

    @rule(worker=workers, chosen=st.data())
    def it_repeats_itself(self, worker: Worker, chosen: Any) -> None:
        if worker.journal:
            worker.send(*chosen.draw(st.lists(st.sampled_from(worker.journal), max_size=4)))

    @rule(worker=workers, step=st.integers(1, 9))
    def it_writes_what_never_arrives(self, worker: Worker, step: int) -> None:
        worker.write("log", {"loss": 1.0}, step)

    @rule(worker=workers, how=st.sampled_from(["finishes", "stops", "crashed", "error"]))
    def it_ends(self, worker: Worker, how: str) -> None:
        if how in ("finishes", "stops"):
            getattr(worker, how)()
        else:
            worker.fails(how)
        worker.send()

    # What always holds

    @invariant()
    def everything_is_in_order(self) -> None:
        for job in self.mine:
            row = self.stage.job(job)
            self._only_moves_of_the_table(job)
            self._events_are_dense(row)
            self._what_is_open_fits_the_state(row)
            assert job not in self.cancelled or row.state is not JobState.SUCCEEDED
            before = self.seen.get(job, row)
            assert (row.fence, row.attempt, row.version) >= (before.fence, before.attempt, before.version)
            self.seen[job] = row

    def _only_moves_of_the_table(self, job: JobId) -> None:
        states = [JobState(state) for state in self.stage.states(job)]
        changes = [(old, new) for old, new in pairwise(states) if old is not new]
        # A worker's "running" may come late, from an attempt that is over: it is its own fact, not the job's.
        own = [
            JobState(json.loads(event.data)["state"])
            for event in self.stage.events(job, ["state"])
            if event.source == -1
        ]
        assert states[0] is JobState.QUEUED
        for old, new in pairwise(own):
            through_running = may_move(old, JobState.RUNNING) and may_move(JobState.RUNNING, new)
            assert old is new or may_move(old, new) or through_running, changes

    def _events_are_dense(self, row: JobRow) -> None:
        rows = self.stage.events(row.id)
        assert [event.no for event in rows] == list(range(1, row.last_no + 1))
        by_source: dict[tuple[int, int], list[int]] = {}
        for event in rows:
            if event.source >= 0:
                by_source.setdefault((event.attempt, event.source), []).append(event.seq)
        for seqs in by_source.values():
            assert len(set(seqs)) == len(seqs)
            assert seqs == sorted(seqs)

    def _what_is_open_fits_the_state(self, row: JobRow) -> None:
        open_parts = [part for part in self.stage.read(attempts.open_sources) if part.job_id == row.id]
        assert bool(open_parts) <= row.state.holds_slots
        assert all(part.attempt == row.attempt for part in open_parts)
        paths = [one.path for one in self.stage.read(lambda conn: checkpoints.of_job(conn, row.id))]
        assert all(path.startswith(f"jobs/{row.id}/attempts/") for path in paths)

    def teardown(self) -> None:
        """Nothing is stuck: left alone for long enough, no job holds a slot any more."""
        for _ in range(3 * len(self.mine)):
            self.stage.rescue()
            self.stage.later(SETTINGS.lease_seconds + SETTINGS.stop_seconds + SETTINGS.kill_seconds + 1)
            self.stage.rescue()
        assert not [job for job in self.mine if self.stage.job(job).state.holds_slots]


def test_whatever_happens_the_invariants_hold(db: Database) -> None:
    class OnThisDatabase(Life):
        pass

    OnThisDatabase.db = db
    sizes = settings(
        max_examples=int(os.environ.get("FOOTPLATE_TEST_EXAMPLES", "12")),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(OnThisDatabase, settings=sizes)  # type: ignore[no-untyped-call]
