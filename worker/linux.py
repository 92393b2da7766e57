"""What only Linux offers and the standard library does not wrap."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# Looked up once, before any fork: a child should not have to search for a library.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """This process gets a signal when the *thread* that forked it ends; it ends now if that has happened already.

    Forgotten by fork, and by who becomes another user, so every generation asks for itself, and he again.
    """
    _call(_PR_SET_PDEATHSIG, int(by))
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Grandchildren whose parent died become our children instead of init's."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    """For this process and all that it starts: no program, whoever's it is and whatever bits it has, gives more."""
    _call(_PR_SET_NO_NEW_PRIVS, 1)


def _call(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def kill_group(pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    """A whole process group, if there is any of it left."""
    try:
        os.killpg(pid, by)
    except ProcessLookupError:
        return


def children() -> list[int]:
    """Of this process, whichever of its threads forked them; the adopted and the dead that nobody waited for too."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end meanwhile.
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def kill_children(which: Callable[[int], bool] = lambda pid: True, *, within: float = 1.0) -> None:
    """And, where this process adopts orphans, theirs in turn. Who does not even die of SIGKILL in time is left."""
    deadline = time.monotonic() + within
    while (left := [pid for pid in children() if which(pid)]) and time.monotonic() < deadline:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)
