"""Tests training that forks processes to outlive it. All of them have ended when the job is cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import is_alive, kill_left_behind
from tests.support.redis_server import RedisServer
from tests.support.system import System
from tests.support.ways import OpenProcesses

CODE = """
import os, signal, sys, time
from pathlib import Path


def main(job, depth):
    levels = job.folder / "levels"
    levels.mkdir()
    if os.fork() == 0:
        # A program of its own, because it is small: hundreds of forks of this process would take minutes.
        program = Path(__file__).with_name("run_away.py")
        os.execv(sys.executable, [sys.executable, "-S", "-E", str(program), str(levels), str(depth)])
    while len(os.listdir(levels)) < depth:
        time.sleep(0.02)
    job.log({"levels": depth}, step=1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)
"""
RUN_AWAY = """
import ctypes, os, signal, sys

libc = ctypes.CDLL(None)
levels, depth = sys.argv[1], int(sys.argv[2])
# The supervisor waits for the end of pipes, so no level keeps one open.
os.closerange(1, 1000)
for signal_number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(signal_number, signal.SIG_IGN)
for level in range(depth):
    libc.prctl(1, 0, 0, 0, 0)   # PR_SET_PDEATHSIG: the death of its parent sends no signal.
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans below it stay below it.
    os.setsid()
    if level + 1 < depth and libc.fork() == 0:
        continue
    # Once only: the folder changes its owner when the attempt ends, and the error would end this process.
    open(f"{levels}/{os.getpid()}", "w").close()
    while True:
        signal.pause()
"""
DEPTH = 500


@pytest.fixture
def system(tmp_path: Path, redis: RedisServer, database_url: str, protection_off: list[str]) -> Iterator[System]:
    processes = OpenProcesses(tmp_path)
    yield System(processes, redis, database_url, without=protection_off, FOOTPLATE_CODE="on")
    kill_left_behind(tmp_path)
    processes.stop_all()


@pytest.mark.parametrize("user", ["training user", "root"])
@pytest.mark.fault(14, without="all processes of training are ended", red="survived the cancel")
def test_no_process_of_a_cancelled_job_survives(system: System, user: str) -> None:
    system.start_service()
    system.start_node(**({"FOOTPLATE_TRAINING_USER": "root"} if user == "root" else {}))
    job = submit(system)
    system.until_step(job, 1, within=120)
    folder = system.folder / "artifacts" / "jobs" / job / "attempts" / "1" / "levels"
    pids = [int(level.name) for level in folder.iterdir()]

    assert system.do(job, "cancel", {"mode": "kill"}).status_code < 300
    system.until_state(job, "cancelled", within=120)

    alive = [pid for pid in pids if is_alive(pid)]
    assert alive == [], f"{len(alive)} of {len(pids)} processes survived the cancel"


def submit(system: System) -> str:
    code = {"bundle": system.upload({"runaway.py": CODE, "run_away.py": RUN_AWAY})}
    return system.submit({"code": code, "loop": {"use": "runaway:main", "args": {"depth": DEPTH}}})
