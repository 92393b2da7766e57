"""Kills during saves, damaged checkpoints and a full disk."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults.equal import assert_bit_equal
from tests.support import preload
from tests.support.processes import Processes
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.system import JSON, LONG_TOY, System, assert_whole

SEED = 20240607
SAVING: JSON = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 44, "save_steps": 8}}
"""An epoch has eight steps. Every eighth step is saved, which ends an epoch, and a pause saves in mid-epoch."""
THRICE: JSON = {**SAVING, "training": {**SAVING["training"], "max_steps": 200}}
"""A job with enough steps for three attempts, each of which may save one checkpoint more than intended."""


# -- killed while saving ----------------------------------------------------------------------------------------------


@pytest.fixture
def killed(processes: Processes, protection_off: list[str]) -> Callable[[int], list[JSON]]:
    """Returns a function that kills a training at random points of a save, and returns the outcomes."""

    def kill(points: int) -> list[JSON]:
        points = 6 if protection_off else points
        path = preload.write(processes.folder / "preload", without=protection_off)
        (folder := processes.folder / "saves").mkdir()
        options = json.dumps({"folder": str(folder), "seed": SEED, "points": points})
        program = processes.start("-m", "tests.faults.dying_saves", options, name="saves", env={"PYTHONPATH": path})
        assert program.wait(120 + 30 * points) == 0, program.output
        return list(json.loads(program.output.splitlines()[-1]))

    return kill


def assert_bit_equal_resumes(killed: list[JSON]) -> None:
    assert {item["died"] for item in killed} == {-signal.SIGKILL}, killed
    for death in killed:
        same = death["ended"] == 0 and not death["differs"]
        assert same, f"killed at point {death['point']}, the resumed run is not bit-equal: {death}"
    for death in killed:
        assert not death["torn"], (
            f"killed at point {death['point']}, the save left the torn checkpoint {death['torn']}: {death}"
        )


@pytest.mark.fault(10, without="a save is renamed into place", red="left the torn checkpoint")
@pytest.mark.fault(10, without="a torn save is not a checkpoint", red="the resumed run is not bit-equal")
@pytest.mark.matrix
def test_a_resume_after_death_at_any_point_of_a_save_is_bit_equal(killed: Callable[[int], list[JSON]]) -> None:
    """Compares weights, optimizer, schedule, random generators and the next 20 losses.

    Training uses dropout, gradient accumulation and two data workers, and dies in mid-epoch. SIGKILL loses no data that
    the kernel has, so this test cannot show that each fsync is needed. tests/trainer/test_killed_saves.py checks their
    order. No test cuts the power of a machine.
    """
    assert_bit_equal_resumes(killed(12))


@pytest.mark.soak
@pytest.mark.fault(10, without=None, because="the short form beside it has them")
def test_a_resume_after_death_at_two_hundred_points_of_a_save_is_bit_equal(killed: Callable[[int], list[JSON]]) -> None:
    assert_bit_equal_resumes(killed(200))


@pytest.mark.fault(10, without=None, because="only a row makes a save resumable: the two tests above miss the others")
@pytest.mark.matrix
def test_a_job_killed_during_three_saves_ends_bit_equal(system: System) -> None:
    system.start(slots=2)
    job = system.submit(THRICE, retry={"max_attempts": 4})
    random = Random(SEED)
    for attempt in (1, 2, 3):
        kill_in_a_save(system, job, attempt, after_seconds=random.uniform(0, 0.03))
        system.until(
            lambda n=attempt: system.job(job)["attempt"] > n, within=60, what="the next attempt is created", job=job
        )
    assert system.until_settled(job)["attempt"] == 4
    quiet = system.submit(THRICE)
    assert system.until_settled(quiet)["attempt"] == 1

    assert_bit_equal(system, job, quiet)
    assert_whole(system.events(job))


def kill_in_a_save(system: System, job: str, attempt: int, *, after_seconds: float) -> None:
    """Kills training in the second save of an attempt, because the first checkpoint counts as progress.

    A third attempt without progress would fail the job as `poison`.
    """
    folder = artifacts(system) / "jobs" / job / "attempts" / str(attempt)

    def saves() -> bool:
        names = [path.name for path in folder.iterdir()]
        return any(name.startswith("checkpoint-") for name in names) and any(name.startswith(".tmp") for name in names)

    what = f"attempt {attempt} saves for the second time"
    system.until(saves, within=120, what=what, job=job, every=0.001)
    trainer = system.training_pids(job)[0]
    # The kill may hit any moment of the save, so no event marks the moment.
    signal.sigtimedwait([], after_seconds)
    os.kill(trainer, signal.SIGKILL)


def artifacts(system: System) -> Path:
    return system.folder / "artifacts"


def checkpoints(system: System, job: str, status: str = "committed") -> list[Path]:
    """Returns the checkpoints of a job with this status, newest first."""
    rows = system.get(f"/jobs/{job}/checkpoints?deleted=true")["data"]
    return [artifacts(system) / row["path"] for row in rows if row["status"] == status]


def data_of_events(system: System, job: str, kind: str, **data: Any) -> list[JSON]:
    """Returns the data of the events of this kind in the job's last attempt that contain the given fields."""
    last = system.job(job)["attempt"]
    events = [event for event in system.events(job) if event["kind"] == kind and event["attempt"] == last]
    return [event["data"] for event in events if data.items() <= event["data"].items()]


# -- damaged ---------------------------------------------------------------------------------------------------------


def flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-8] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def link_in_a_ring(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (flip_a_bit, r"model\.safetensors has changed"),
    "a folder of links": (link_in_a_ring, "cannot be opened"),
}
"""Functions that damage a checkpoint, each with the reported error. tests/trainer has every kind of damage."""


@pytest.mark.fault(11, without="a checkpoint is verified", red="no event reported a flipped bit")
@pytest.mark.fault(11, without="a corrupt checkpoint is still offered", red="a silent start from zero")
def test_a_damaged_checkpoint_is_skipped_and_if_all_are_damaged_the_job_fails(system: System) -> None:
    system.start(slots=3)
    quiet, spoilt, flipped = (pausing_with_two_checkpoints(system) for _ in range(3))
    they_go_on(system, {"nothing": quiet, "a flipped bit": flipped}, quiet)
    resumes_fail_until_a_checkpoint_is_repaired(system, spoilt, quiet)

    rest = ["a file too many", *(damage for damage in DAMAGE if damage != "a flipped bit")]
    they_go_on(system, {damage: pausing_with_two_checkpoints(system) for damage in rest}, quiet)


def they_go_on(system: System, jobs: dict[str, str], quiet: str) -> None:
    should_use = {}
    for damage, job in jobs.items():
        assert system.until_settled(job)["state"] == "paused"
        newest, before = checkpoints(system, job)[:2]
        should_use[damage] = before if damage in DAMAGE else newest
        if damage in DAMAGE:
            DAMAGE[damage][0](newest)
        elif damage == "a file too many":
            (newest / "model.safetensors.bak").write_bytes(b"mine")
        assert system.do(job, "resume").status_code == 202
    for damage, job in jobs.items():
        system.until_settled(job)
        it_went_on(system, job, damage, should_use[damage])
        assert_bit_equal(system, job, quiet)


def pausing_with_two_checkpoints(system: System) -> str:
    """Returns a job that is pausing with two checkpoints: one of the end of an epoch, and one of mid-epoch."""
    gate = system.gate()
    job = system.submit(SAVING, callbacks=[gate.at(11)])
    system.until_checkpoint(job, within=120)
    system.until_reached(job, gate, 11)
    assert system.do(job, "pause").status_code == 202
    return job


def it_went_on(system: System, job: str, damage: str, used: Path) -> None:
    """Checks that training continued from the folder `used`, and that the error names the newest checkpoint."""
    corrupt = data_of_events(system, job, "checkpoint", status="corrupt")
    if damage in DAMAGE:
        assert len(corrupt) == 1, f"no event reported {damage}: {corrupt}"
        assert re.search(DAMAGE[damage][1], corrupt[0]["message"]), corrupt
        assert Path(corrupt[0]["path"]).name in corrupt[0]["message"], corrupt
        assert [artifacts(system) / item["path"] for item in corrupt] == checkpoints(system, job, "corrupt")
    else:
        assert not corrupt
    notes = data_of_events(system, job, "note", checkpoint=str(used.relative_to(artifacts(system))))
    assert len(notes) == 1, f"no event reported that training continues from {used}"
    outcome = system.job(job)
    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 2), outcome


def resumes_fail_until_a_checkpoint_is_repaired(system: System, job: str, quiet: str) -> None:
    """Checks that each resume fails while all checkpoints are corrupt, and that one continues after a repair."""
    assert system.until_settled(job)["state"] == "paused"
    every = checkpoints(system, job)
    weights = (every[-1] / "model.safetensors").read_bytes()
    for folder in every:
        flip_a_bit(folder)
    for _ in range(2):
        assert system.do(job, "resume").status_code == 202
        outcome = system.until_settled(job)
        assert outcome["state"] == "failed", f"a silent start from zero: {data_of_events(system, job, 'note')}"
        assert (outcome["reason"], outcome["error"]["code"]) == ("no_valid_checkpoint", "no_valid_checkpoint"), outcome
        assert f" {len(every)} checkpoints" in outcome["error"]["message"]
        assert len(data_of_events(system, job, "checkpoint", status="corrupt")) == len(every)

    (every[-1] / "model.safetensors").write_bytes(weights)
    assert system.do(job, "resume").status_code == 202
    assert system.until_settled(job)["state"] == "succeeded"
    healed = data_of_events(system, job, "checkpoint", status="healed")
    assert [artifacts(system) / item["path"] for item in healed] == [every[-1]], "no event reported the repair"
    assert every[-1] not in checkpoints(system, job, "corrupt")
    assert_bit_equal(system, job, quiet)
    assert_whole(system.events(job))


# -- a full disk -----------------------------------------------------------------------------------------------------


class Disk:
    """A small disk for the artifacts if this machine allows a mount (ENOSPC).

    Elsewhere a limit on the file size of the training process replaces the disk (EFBIG).
    """

    def __init__(self, system: System, small: SmallDisk | None) -> None:
        self.system, self.small = system, small

    def fill(self, job: str) -> None:
        self.small.fill() if self.small else self._limit(job, 1000)

    def free(self, job: str) -> None:
        self.small.free() if self.small else self._limit(job, resource.RLIM_INFINITY)

    def _limit(self, job: str, size: int) -> None:
        for pid in self.system.training_pids(job)[:1]:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture
def disk(system: System) -> Iterator[Disk]:
    with small_disk(artifacts(system), megabytes=4) as small:
        yield Disk(system, small)
        system.processes.stop_all()


OFTEN = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 60, "save_steps": 10}}


@pytest.mark.fault(11, without="a failed save is tolerated", red="training goes on")
@pytest.mark.fault(11, without="failed saves are counted", red="gives up")
def test_a_full_disk_is_reported_and_three_failed_saves_are_tolerated(system: System, disk: Disk) -> None:
    """The older checkpoint stays. The next successful save resets the number of failures."""
    system.start()
    gate = system.gate()
    quiet, job = system.submit(OFTEN), system.submit(OFTEN, callbacks=[gate.at(15, 25)])
    system.until_checkpoint(job, within=120)
    system.until_reached(job, gate, 15)
    disk.fill(job)
    gate.open(15)
    report = failures(system, job, 1)
    system.until(
        lambda: gate.is_reached(25) or system.state(job) == "failed",
        within=60,
        what="training goes on or fails",
        job=job,
    )
    disk.free(job)
    gate.open(25)
    end = system.until_settled(job)
    assert (end["state"], end["attempt"]) == ("succeeded", 1), f"training goes on, they say: {end}"
    assert all(path.name != f"checkpoint-{report[0]['step']}" for path in checkpoints(system, job))
    assert_bit_equal(system, job, quiet)

    gate = system.gate()
    hopeless = system.submit(OFTEN, callbacks=[gate.at(15)])
    system.until_checkpoint(hopeless)
    system.until_reached(hopeless, gate, 15)
    disk.fill(hopeless)
    gate.open(15)
    end = system.until_settled(hopeless)
    report = failures(system, hopeless, 1)
    assert len(report) == 4, f"it gives up after {len(report)} failures: {end}"
    assert (end["state"], end["reason"], end["error"]["code"]) == ("failed", "error", "cannot_save"), end
    disk.free(hopeless)
    assert system.do(hopeless, "resume").status_code == 202
    assert system.until_settled(hopeless)["state"] == "succeeded"
    steps = [event["step"] for event in system.events(hopeless) if event["kind"] == "log" and event["attempt"] == 2]
    assert min(steps) == report[0]["step"] - OFTEN["training"]["save_steps"] + 1, "it goes on from the older one"
    assert_bit_equal(system, hopeless, quiet)


def failures(system: System, job: str, count: int) -> list[JSON]:
    """Waits for this number of failed saves in a row, and returns their events."""

    def failed_saves() -> list[JSON]:
        return [event for event in system.events(job) if event["data"].get("status") == "failed"]

    system.until(lambda: len(failed_saves()) >= count, within=20, what=f"{count} saves fail", job=job)
    for event in failed_saves():
        assert f"checkpoint-{event['step']} " in event["data"]["message"], event
    return failed_saves()
