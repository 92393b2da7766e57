"""Restores an older backup of the database while a job trains. The job continues, and a gap names the lost events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.events.changes import Collector
from tests.simulation import users
from tests.simulation.control import in_place_of_reality
from tests.simulation.ground import Ground
from tests.simulation.railway import Railway
from tests.simulation.training import Plan
from tests.simulation.world import QUIET, Violation, World


class Story:
    """Long jobs without other faults. The backup is taken in second 15, and the database is lost in second 30."""

    def __init__(self, ground: Ground, folder: Path) -> None:
        ground.clear()
        self.ground, self.world = ground, World(1, QUIET, folder)
        self.railway = Railway(self.world, ground)
        self.driver: Any = ground.connection.connection.driver_connection

    def run(self) -> tuple[int, int]:
        """Runs the simulation. Returns the watermarks of the first job at the backup and at the loss."""
        railway, books = self.railway, self.railway.books
        with in_place_of_reality(self.world):
            railway.open()
            self.world.run(until=15)
            self.job = railway.users.jobs[0]
            backup, before = self.driver.serialize(), books.sources[self.job, 1, 0].watermark
            self.world.run(until=30)
            after = books.sources[self.job, 1, 0].watermark
            self.restore(backup)
            self.world.run(until=250, is_over=railway.is_quiet)
            railway.close()
        return before, after

    def restore(self, backup: bytes) -> None:
        """Restores the backup as an operator does, while the service is stopped."""
        control = self.railway.stop_control()
        assert control is not None
        control.die()
        self.driver.deserialize(backup)
        self.railway.books.forget_rows_after_a_restore()
        self.railway.start_control()


@pytest.fixture
def story(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    spec = users.a_spec(1, None)
    monkeypatch.setattr(users, "a_plan", lambda _: Plan(steps=40, save_every=10))
    monkeypatch.setattr(users, "a_spec", lambda *_: spec)
    return Story(ground, tmp_path)


def gaps(story: Story) -> list[tuple[int, int]]:
    """Returns the gaps of the first job's history."""
    rows = story.ground.rows(f"SELECT data FROM events WHERE job_id = '{story.job}' AND kind = 'gap'")
    return [(data["from"], data["to"]) for data in (json.loads(row[0]) for row in rows)]


def test_events_that_no_node_has_any_more_are_reported_as_missing(story: Story) -> None:
    before, after = story.run()

    assert {(job.state, job.attempt) for job in story.railway.books.jobs.values()} == {("succeeded", 1)}
    [(first, last)] = gaps(story)
    assert before + 1 == first <= last < after


@pytest.mark.matrix
def test_an_ingest_that_waits_for_lost_events_is_detected(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Collector, "_declare_gap", lambda *_: None)

    with pytest.raises(Violation, match="not quiet"):
        story.run()
