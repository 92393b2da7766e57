"""All runaway processes of an attempt are ended, whatever they do to escape."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.processes import REPOSITORY

GUARDIAN = """
import ctypes, os, signal, sys, time
from footplate.contract.host.linux import Leftovers, adopt_orphans, children, kill_user

libc = ctypes.CDLL(None)
SPARED, UID, NOBODY = [], 61_700, 61_701
NAME = f"runs {os.getpid()}"


def deep(depth=40):
    for _ in range(depth):
        libc.prctl(36, 1, 0, 0, 0)
        os.setsid()
        if libc.fork() != 0:
            sleep()
    sleep()


def comet():
    while True:
        if libc.fork() != 0:
            os._exit(0)


def bomb(most=40):
    # A process that is killed is soon replaced by another one, and one that is stopped is continued.
    while True:
        if len(mine()) < most:
            libc.fork()
        for pid in mine():
            os.kill(pid, signal.SIGCONT)


def mine():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and marked(name)]


def marked(pid):
    try:
        return open(f"/proc/{pid}/comm").read().strip() == NAME
    except OSError:
        return False


def sleep():
    while True:
        time.sleep(1)


def begin(attack, uid=None):
    started, tell = os.pipe()
    if libc.fork() == 0:
        libc.prctl(15, NAME.encode(), 0, 0, 0)
        if uid:
            os.setresuid(uid, uid, uid)
        os.setsid()
        if libc.fork() == 0:
            os.write(tell, b".")
            attack()
        os._exit(0)
    os.read(started, 1)


adopt_orphans()
SPARED.append(os.fork())
if not SPARED[-1]:
    sleep()
"""


def guardian(story: str) -> None:
    """Runs a process that adopts orphans, spares one child and ends the others."""
    outcome = subprocess.run(
        [sys.executable, "-c", GUARDIAN + story + "\nassert children() == SPARED, children()\nos.kill(SPARED[0], 9)\n"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("attack", ["deep", "comet", "bomb"])
def test_all_runaway_processes_are_killed_except_the_spared_child(attack: str) -> None:
    guardian(f"begin({attack})\nLeftovers(lambda pid: pid in SPARED).end()\nassert not mine()")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give training a user of its own")
@pytest.mark.parametrize("attack", ["deep", "comet", "bomb"])
def test_a_single_call_kills_all_processes_of_a_user(attack: str) -> None:
    guardian(
        f"begin({attack}, UID)\nkill_user(UID, NOBODY)\n"
        "assert os.getresuid() == (0, 0, 0)\n"
        "while len(children()) > 1:\n    [os.waitpid(pid, os.WNOHANG) for pid in children() if pid not in SPARED]\n"
        "assert not mine()"
    )
