"""Tests training that dies, hangs, ignores its stop, or makes no progress. Its reason is reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.faults.training_faults import children, limit_memory, memory_cgroup, toy
from tests.support.processes import is_alive, until
from tests.support.system import JSON, LONG_TOY, System

DEATHS = {
    "kill": ("crashed", "killed"),
    "segfault": ("crashed", "sigsegv"),
    "os._exit": ("crashed", "exited"),
    "sys.exit": ("crashed", "exited"),
    "memory error": ("oom", "out_of_memory"),
    "cuda error": ("oom", "gpu_out_of_memory"),
    "rlimit": ("oom", "out_of_memory"),
    # A test can make a cgroup only on some machines.
    **({"cgroup": ("oom", "out_of_memory")} if memory_cgroup() else {}),
}
"""Ways in which training dies, each with the reason and the error code of the attempt."""


@pytest.fixture
def marker_folder(system: System) -> Path:
    """Returns the folder in which the callback of training_faults.py marks what it has done."""
    return system.processes.folder / "marker_folder"


@pytest.fixture
def cgroup(tmp_path: Path) -> Iterator[Path | None]:
    """Yields a cgroup for the node, or None if this machine allows none.

    A test must request this fixture before `system`, because the node must end before the cgroup is removed.
    """
    if (room := memory_cgroup()) is None:
        yield None
        return
    folder = room / f"footplate-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    # Killed processes leave their cgroup a moment after they are gone from /proc.
    until(partial(_is_removed, folder), within=10, what="the node's cgroup is empty")


def _is_removed(cgroup: Path) -> bool:
    with suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()


@pytest.mark.fault(2, without="the end of training is received", red="reported within 5 s")
@pytest.mark.fault(2, without="the table of errors of libraries", red=r"reported as \('error'")
def test_training_that_dies_is_reported_and_the_node_takes_its_next_job(
    cgroup: Path | None, system: System, marker_folder: Path
) -> None:
    system.start_service()
    if cgroup is None:
        system.start_node()
    else:
        (marker_folder / "cgroup").mkdir(parents=True)
        (marker_folder / "cgroup/cgroup").write_text(str(cgroup))
        system.start_node(before=["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh"])
    jobs = {do: system.submit(toy(do, marker_folder / do, steps=[5])) for do in DEATHS}

    for do, job in jobs.items():
        system.until((marker_folder / do / "5").exists, within=60, what=f"the fault {do} has begun", job=job)
        system.until(
            partial(system.has_ended, job, 1), within=5, what=f"the fault {do} is reported within 5 s", job=job
        )
        if do == "cgroup" and cgroup is not None:
            limit_memory(cgroup, None)
        first = system.attempts(job)[0]
        outcome = (first["reason"], first["error"]["code"])
        assert outcome == DEATHS[do], f"{do} is reported as {outcome}: {first['error']}"

    for do, job in jobs.items():
        end = system.until_settled(job)
        # A crash is retried. Out of memory is not, because it would happen again.
        expected = ("failed", "oom", 1) if DEATHS[do][0] == "oom" else ("succeeded", "completed", 2)
        assert (end["state"], end["reason"], end["attempt"]) == expected, end


STALL_SECONDS, STOP_SECONDS = 6, 6


@pytest.mark.fault(3, without="the stall limit", red="stalled within its limit")
def test_training_that_hangs_is_killed_at_the_stall_limit_and_retried(system: System) -> None:
    system.start()
    # Training has a single long epoch, because each epoch would start new data workers.
    data = {"use": "toy/regression", "args": {"n": 100_000, "seconds_per_item": 0.002}}
    training = {**LONG_TOY["training"], "max_steps": 3000}
    job = system.submit({**LONG_TOY, "data": data, "training": training, "resources": {"stall_limit": STALL_SECONDS}})

    freeze_until_stalled(system, job, attempt=1, frozen=slice(0, 1))
    freeze_until_stalled(system, job, attempt=2, frozen=slice(1, None))

    system.until(lambda: logs_of(system, job, 3), within=60, what="the third attempt trains", job=job)
    assert system.do(job, "cancel", {"mode": "graceful"}).status_code == 202
    outcome = system.until_settled(job)
    assert (outcome["state"], outcome["attempt"]) == ("cancelled", 3), outcome


def logs_of(system: System, job: str, attempt: int) -> list[JSON]:
    return [event for event in system.events(job) if event["kind"] == "log" and event["attempt"] == attempt]


def freeze_until_stalled(system: System, job: str, *, attempt: int, frozen: slice) -> None:
    """Freezes processes of the job, and waits until the attempt has stalled.

    `frozen` selects from the list of training and its two data workers.
    """
    trains = f"attempt {attempt} trains"
    system.until(lambda: len(logs_of(system, job, attempt)) > 2, within=60, what=trains, job=job)

    def all_three() -> list[int]:
        pids = system.training_pids(job)
        return pids if len(pids) == 3 else []

    family = system.processes.until(all_three, within=60, what="training and its two data workers run")
    for pid in family[frozen]:
        os.kill(pid, signal.SIGSTOP)

    within = "the attempt is stalled within its limit"
    system.until(lambda: system.has_ended(job, attempt), within=STALL_SECONDS + 6, what=within, job=job)
    stalled = system.attempts(job)[attempt - 1]
    assert (stalled["reason"], stalled["error"]["code"]) == ("stalled", "stalled"), stalled
    assert f"{STALL_SECONDS} s" in stalled["error"]["message"]
    until(lambda: not any(map(is_alive, family)), within=1, what="the frozen processes are gone")


@pytest.mark.fault(14, without="KILL after TERM", red="ends within its deadline")
def test_training_that_ignores_its_stop_is_killed_with_all_that_it_started(system: System, marker_folder: Path) -> None:
    # Control gives up an attempt only after hours, so only the supervisor's SIGKILL can end this attempt.
    system.environment |= {"FOOTPLATE_STOP_SECONDS": str(STOP_SECONDS), "FOOTPLATE_KILL_SECONDS": "36000"}
    system.start(slots=2)
    markers = marker_folder / "deaf"
    endless = toy("hang", markers, steps=[])
    endless["training"] |= {"max_steps": 100_000}
    job, neighbour = system.submit(toy("hang", markers, steps=[5])), system.submit(endless)
    system.until(lambda: len(children(markers)) == 2, within=60, what="training hangs and has two children", job=job)
    family = [*system.training_pids(job), *children(markers)]

    assert system.do(job, "cancel").status_code == 202

    system.until((markers / "term").exists, within=STOP_SECONDS, what="training receives SIGTERM", job=job)
    ends = "the job ends within its deadline"
    system.until(lambda: system.state(job) == "cancelled", within=STOP_SECONDS + 4, what=ends, job=job)
    until(lambda: not any(map(is_alive, family)), within=1, what="all processes that training started are gone")
    moves = system.states(job)
    assert moves[-2:] == ["stopping", "cancelled"]
    assert (system.state(neighbour), system.job(neighbour)["attempt"]) == ("running", 1)


@pytest.mark.fault(22, without="poison is counted", red="gives up after 5 attempts")
def test_a_job_without_progress_gets_three_attempts_and_others_get_more(system: System, marker_folder: Path) -> None:
    system.start(slots=2)
    saving = toy("kill", marker_folder / "stumbles", steps=[6, 11, 16, 18])
    saving["training"] |= {"save_strategy": "steps", "save_steps": 5}
    poison = system.submit(toy("kill", marker_folder / "poison", steps=[3], always=True), retry={"max_attempts": 5})
    stumbles = system.submit(saving, retry={"max_attempts": 5})
    others = [system.submit(toy("kill", marker_folder / "none", steps=[])) for _ in range(2)]

    outcome = system.until_settled(poison)
    assert outcome["attempt"] == 3, f"it gives up after {outcome['attempt']} attempts: {outcome}"
    assert (outcome["state"], outcome["reason"], outcome["error"]["code"]) == ("failed", "poison", "killed"), outcome
    assert [attempt["reason"] for attempt in system.attempts(poison)] == ["crashed"] * 3
    for job in others:
        outcome = system.until_settled(job)
        assert (outcome["state"], outcome["attempt"]) == ("succeeded", 1), outcome
    outcome = system.until_settled(stumbles)
    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 5), outcome
