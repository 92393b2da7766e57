"""What only Linux offers and the standard library does not wrap."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Looked up once, before any fork: a child should not have to search for a library.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """This process gets a signal when the *thread* that forked it ends; it ends now if that has happened already.

    Forgotten by fork, so every generation asks for itself.
    """
    _call(_PR_SET_PDEATHSIG, int(by))
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Grandchildren whose parent died become our children instead of init's."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


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
