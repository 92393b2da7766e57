"""Training that does not want to end: its process forks again and again, and every generation runs from its guardian.

Each level clears the signal that its parent's death would send, adopts the orphans below it, and starts a session of
its own. Then it forks the next level and writes a heartbeat file, whose name is its process id, again and again.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from tests.support.processes import is_alive
from tests.support.system import JSON, System

CODE = """
import ctypes, os, signal, time
from pathlib import Path

libc = ctypes.CDLL(None)


def main(job, depth):
    beats = job.folder / "beats"
    beats.mkdir()
    pid = libc.fork()
    if pid == 0:
        run_away(beats, depth)
    while len(os.listdir(beats)) < depth:
        time.sleep(0.02)
    job.log({"levels": depth}, step=1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def run_away(beats, depth):
    # The supervisor must not be kept waiting by a pipe that somebody else holds.
    os.closerange(1, 1000)
    for signal_number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signal_number, signal.SIG_IGN)
    for level in range(depth):
        libc.prctl(1, 0, 0, 0, 0)   # PR_SET_PDEATHSIG: nobody's death concerns it.
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans below it stay below it.
        os.setsid()
        if level + 1 < depth and libc.fork() == 0:
            continue
        while True:
            (beats / str(os.getpid())).write_text(str(time.time_ns()))
            time.sleep(depth / 200)
"""


def submit(system: System, depth: int) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("runaway.py", CODE)
    answer = system.client.post("/bundles", content=packed.getvalue(), headers={"Content-Type": "application/zip"})
    assert answer.status_code in (200, 201), answer.text
    code = {"bundle": answer.json()["sha256"]}
    return system.submit({"code": code, "loop": {"use": "runaway:main", "args": {"depth": depth}}})


def levels(system: System, job: str) -> list[int]:
    """The process ids of all levels, once each of them has sent a heartbeat."""
    system.until_step(job, 1, within=120)
    return [int(beat.name) for beat in beats(system, job).iterdir()]


def beats(system: System, job: str) -> Path:
    return system.folder / "artifacts" / "jobs" / job / "attempts" / "1" / "beats"


def cancelled(system: System, job: str) -> JSON:
    """The job, as soon as the service says that it is cancelled."""
    assert system.do(job, "cancel", {"mode": "kill"}).status_code < 300
    return system.until_state(job, "cancelled", within=120)


def require_gone(pids: list[int]) -> None:
    alive = [pid for pid in pids if is_alive(pid)]
    assert alive == [], f"{len(alive)} of {len(pids)} processes survived the cancel"
