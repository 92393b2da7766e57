"""Runs the commands of docs/guides/backup-and-upgrade.md while jobs train: drain, back up, delete all, restore."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import POSTGRES, SQLITE, paste, snippets
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import LONG_TOY, SHORT_TOY, System, assert_whole
from tests.support.versions import BEFORE, start_node_of

PAGE = "guides/backup-and-upgrade.md"
ENDLESS = {
    **LONG_TOY,
    "data": {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.01}},
    "training": {**LONG_TOY["training"], "max_steps": 100_000, "save_steps": 2, "dataloader_num_workers": 0},
}
SHORTER = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 60}}


class Ground:
    """The databases of a system before and after a restore.

    `which` selects the snippets of the page for this kind of database.
    """

    def __init__(self, which: slice, folder: Path, urls: tuple[str, str], path: str = "") -> None:
        self.which, self.folder, self.urls, self.path = which, folder, urls, path

    def home(self, name: str) -> Path:
        return self.folder / name / "home"

    def paste(self, section: str, name: str) -> None:
        home = self.home(name)
        paste(
            snippets(PAGE, section=section)[self.which],
            self.folder,
            path=self.path,
            BACKUP=str(self.folder / "backup"),
            FOOTPLATE_HOME=str(home),
            FOOTPLATE_ARTIFACTS=str(home / "artifacts"),
            FOOTPLATE_DATABASE=self.urls[name == "elsewhere"],
        )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.matrix])])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    if request.param == "sqlite":
        here, there = (tmp_path / name / "home/footplate.db" for name in ("here", "elsewhere"))
        yield Ground(SQLITE, tmp_path, (f"sqlite:///{here}", f"sqlite:///{there}"))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database() as first, server.database() as second:
        yield Ground(POSTGRES, tmp_path, (first, second), str(server.bin))


@pytest.mark.matrix
def test_jobs_survive_an_upgrade_and_a_restore_from_backup(ground: Ground, redis: RedisServer) -> None:
    for name in ("here", "elsewhere"):
        (ground.folder / name).mkdir()
    here = Processes(ground.folder / "here")
    elsewhere = Processes(ground.folder / "elsewhere")
    try:
        a_story(ground, here, elsewhere, redis)
    finally:
        elsewhere.stop_all()
        here.stop_all()


def a_story(ground: Ground, here: Processes, elsewhere: Processes, redis: RedisServer) -> None:
    system = System(here, redis, ground.urls[0])
    system.start_service()
    start_node_of(BEFORE, system, slots=3)
    gate = system.gate()
    to_pause = {**SHORTER, "callbacks": [gate.at(15)]}
    toy_job, quiet, paused, running = (system.submit(spec) for spec in (SHORT_TOY, SHORTER, to_pause, ENDLESS))
    system.until_reached(paused, gate, 15)
    assert system.do(paused, "pause").status_code == 202
    system.until_state(paused, "paused")

    the_service_is_upgraded_under_a_node_of_the_version_before(system, running)

    for job in (toy_job, quiet):
        assert system.until_settled(job)["state"] == "succeeded"
    ground.paste("Back up", "here")
    before = {job: what_a_user_reads(system, job) for job in (toy_job, quiet, paused)}
    the_node_is_drained(system, running)
    system.kill_everything()
    shutil.rmtree(system.folder)

    ground.paste("Restore", "elsewhere")
    redis.start()
    system = System(elsewhere, redis, ground.urls[1])
    system.start_service()
    assert {job: what_a_user_reads(system, job) for job in before} == before
    system.start_node(2, slots=2)
    system.processes.until(lambda: [node["state"] for node in system.get("/nodes")["data"]].count("lost") == 1,
                           within=60, what="the node in the backup is lost")  # fmt: skip
    assert system.do(paused, "resume").status_code == 202
    resumed = system.until_settled(paused)

    assert (resumed["state"], resumed["attempt"]) == ("succeeded", 2), resumed
    assert system.losses(paused) == system.losses(quiet)
    assert system.final_weights(paused) == system.final_weights(quiet)
    what_ran_at_the_backup_was_lost_and_goes_on(system, running)
    for job in (toy_job, quiet, paused, running):
        assert_whole(system.events(job))


def what_a_user_reads(system: System, job: str) -> dict[str, Any]:
    outputs = system.final_weights(job) if system.state(job) == "succeeded" else b""
    return {"job": system.job(job), "events": system.events(job), "outputs": outputs}


def the_service_is_upgraded_under_a_node_of_the_version_before(system: System, job: str) -> None:
    system.until_checkpoint(job)
    system.services["all"].terminate()
    system.start_service()
    system.until_step(job, system.job(job)["progress"]["step"] + 2)
    now = system.job(job)
    assert (now["state"], now["attempt"]) == ("running", 1), now


def the_node_is_drained(system: System, job: str) -> None:
    [node] = system.get("/nodes")["data"]
    drain = snippets(PAGE, section="Drain a node, and bring it back")
    paste(drain, system.folder, system.url, NODE=node["id"], FOOTPLATE_API_KEY="")
    waits = system.until_state(job, "queued")
    assert waits["attempt"] == 1, waits
    moves = [event for event in system.events(job) if event["kind"] == "state"]
    assert moves[-1]["data"]["reason"] == "drained"
    assert system.nodes[1].terminate() == 0


def what_ran_at_the_backup_was_lost_and_goes_on(system: System, job: str) -> None:
    system.until(lambda: system.job(job)["attempt"] == 2, within=60, what="the job has a second attempt", job=job)
    system.until_state(job, "running")
    names = {event["step"] for event in system.events(job) if event["kind"] == "checkpoint" and event["attempt"] == 1}
    [begins] = [e for e in system.events(job) if e["kind"] == "note" and e["attempt"] == 2]
    assert begins["data"]["message"].endswith(f" step {max(names)}")
    assert system.do(job, "cancel").status_code == 202
    system.until_state(job, "cancelled")
