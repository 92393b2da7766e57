"""Checks that the simulation fails within a few seeds if any single protection is switched off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import update

from footplate.contract.lifecycle import Desired
from service.control import duties
from service.control import ingest as ingest_duty
from service.control.control_state import ControlState
from service.events import changes
from service.events import ingest as ingesting
from service.events.changes import Collector, IngestEffects
from service.events.entries import ParsedEntries
from service.jobs import beat, conclude, place, prune, rescue, submit
from service.jobs.rescue import Timers
from service.store import attempts, checkpoints
from service.store.row_types import SourceRow
from service.store.tables import sources
from tests.simulation.ground import Ground
from tests.simulation.seeds import run
from tests.simulation.test_simulation import SEEDS
from tests.simulation.training import Store
from worker.attempt.control_link import Sender

Off = list[Any]
"""Patches that turn one protection off."""
MUTATIONS: dict[str, tuple[Callable[[], Off], str]] = {}
"""Mutations by name, each with a piece of the error that the simulation reports."""


def off(says: str) -> Callable[[Callable[[], Off]], Callable[[], Off]]:
    def register(turn_off: Callable[[], Off]) -> Callable[[], Off]:
        MUTATIONS[turn_off.__name__] = turn_off, says
        return turn_off

    return register


# Control


@off("is at attempt")
def the_fence_is_not_checked() -> Off:
    def holds(job: Any, part: SourceRow, attempt: int, fence: int, claim: str) -> bool:
        return job.state.holds_slots and part.claim == claim

    return [patch.object(changes, "holds", holds), patch.object(beat, "holds", holds)]


@off("is granted twice")
def every_claim_is_granted() -> Off:
    def claim(
        conn: Any, job: Any, attempt: int, fence: int, node: Any, boot: str, claim: Any, now: int, rendezvous: Any
    ) -> Any:
        this = (sources.c.job_id == job) & (sources.c.attempt == attempt) & (sources.c.node == node)
        conn.execute(update(sources).where(this).values(claim=claim, boot=boot, claimed_at=now, rendezvous=rendezvous))
        return next((part for part in attempts.sources_of(conn, job, attempt) if part.claim == claim), None)

    return [patch.object(attempts, "claim", claim)]


@off("follows")
def events_may_be_skipped() -> Off:
    return [_with_page(lambda page, first: max(page.watermark, first - 1))]


@off("")
def events_may_be_stored_twice() -> Off:
    return [_with_page(lambda page, first: min(page.watermark, first - 1))]


def _with_page(watermark: Callable[[Any, int], int]) -> Any:
    """Changes the watermark of a source before each of its batches is stored."""
    take = Collector.take

    def changed(self: Any, batch: Any, part: SourceRow, effects: IngestEffects) -> None:
        take(self, replace(batch, events=[]), part, effects)
        page = self.changes.sources[part.attempt, part.source]
        if batch.events:
            page.watermark = watermark(page, batch.events[0].seq)
        take(self, batch, part, effects)

    return patch.object(Collector, "take", changed)


@off("got an acknowledgement for")
def events_are_acknowledged_before_the_commit() -> Off:
    store = ingest_duty._store

    async def hasty(state: ControlState, entries: ParsedEntries, now: int) -> list[IngestEffects]:
        batches = [batch for batch in entries.batches if batch.events]
        marks = {(batch.job, batch.attempt, batch.source): batch.events[-1].seq for batch in batches}
        await ingest_duty._acknowledge(state, [b"0-0"], [IngestEffects(watermarks=marks)])
        return await store(state, entries, now)

    return [patch.object(ingest_duty, "_store", hasty)]


@off("is called silent")
def a_new_control_gives_no_full_lease() -> Off:
    elapsed = Timers.elapsed

    def impatient(self: Timers, key: Any, clock: float) -> float:
        return elapsed(self, key, clock) if key[0] != "lease" or key in self._since else 1e9

    return [patch.object(Timers, "elapsed", impatient)]


@off("is lost, and no gap says")
def lost_events_are_not_reported_as_a_gap() -> Off:
    return [patch.object(rescue, "record_loss", lambda *_: None)]


@off("succeeded after its cancel")
def the_end_of_an_attempt_ignores_a_cancel() -> Off:
    decide = conclude.next_move
    return [
        patch.object(conclude, "next_move", lambda job, *how: decide(replace(job, desired=Desired.RUN), *how)),
    ]


@off("holds slots, and is over")
def ended_attempts_keep_their_slots() -> Off:
    return [patch.object(attempts, "end_sources", lambda *_: None)]


@off("went from")
def fences_do_not_rise() -> Off:
    return [patch.object(place, "Fence", lambda fence: fence - 1)]


@off("gave away")
def placement_ignores_occupied_slots() -> Off:
    return [patch.object(attempts, "open_sources", lambda *_: [])]


@off("the same key made another job")
def idempotency_keys_are_ignored() -> Off:
    return [patch.object(submit, "_replay", lambda *_: None)]


@off("not quiet")
def lost_attempts_are_not_rescued() -> Off:
    return [patch.object(duties, "rescue_operation", SimpleNamespace(rescue=lambda *_: rescue.RescueEffects()))]


@off("not quiet")
def starting_has_no_deadline() -> Off:
    return [patch.object(rescue._ActiveJob, "_overran_its_start", lambda _: False)]


@off("the newest to do so")
def rotation_deletes_checkpoints_of_the_running_attempt() -> Off:
    def rotate(conn: Any, job: Any) -> None:
        older = {row.path for row in checkpoints.offers(conn, job)[1:]}
        checkpoints.mark(conn, job, older, checkpoints.DELETING)

    return [patch.object(ingesting, "rotate", rotate)]


@off("checkpoints of older attempts")
def checkpoints_of_older_attempts_are_never_deleted() -> Off:
    return [patch.object(prune, "_is_past_resuming", lambda *_: False)]


@off("was rotated away, and is there")
def a_row_is_marked_deleted_before_its_folder_is_deleted() -> Off:
    return [patch.object(Store, "remove_all", lambda _, rows: rows)]


# Workers


@off("not quiet")
def unacknowledged_events_are_not_sent_again() -> Off:
    return [patch.object(Sender, "rewind", lambda _: None)]


@off("the journal of")
def any_acknowledgement_empties_the_journal() -> Off:
    acknowledge = Sender.acknowledge

    def gullible(self: Sender, mark: int) -> None:
        acknowledge(self, self.journal.last if mark else 0)

    return [patch.object(Sender, "acknowledge", gullible)]


@pytest.mark.matrix
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_detects_that_a_protection_is_missing(name: str, ground: Ground) -> None:
    turn_off, says = MUTATIONS[name]
    patches = turn_off()
    for mutation in patches:
        mutation.start()
    try:
        errors = (run(seed, ground).error for seed in range(SEEDS))
        error = next((error for error in errors if error is not None and says in str(error)), None)
    finally:
        for mutation in patches:
            mutation.stop()
    assert error is not None, f"none of {SEEDS} seeds failed"
