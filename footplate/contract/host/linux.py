"""What only Linux offers and the standard library does not wrap."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_IPC_RMID = 0
_STARTED = 19
"""The start time's place among the fields of a process, counted from its state."""
_DEAD = ("Z", "X")
PAUSE_SECONDS = 0.002
"""Between two turns over processes that are to end: time for the kernel to end them."""
TURN_SECONDS = 0.05
"""How long one turn may pass over them."""

# Looked up once, before any fork: a child should not have to search for a library.
_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """This process gets a signal when the *thread* that forked it ends; it ends now if that has happened already.

    Forgotten by fork, and by who becomes another user, so every generation asks for itself, and he again.
    """
    end_with_parent(by)
    if os.getppid() != parent:
        os._exit(1)


def end_with_parent(by: signal.Signals) -> None:
    """The same, for a process that notices in another way that its parent has ended already."""
    _call(_PR_SET_PDEATHSIG, int(by))


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


def children(of: int | Literal["self"] = "self") -> list[int]:
    """Of this process, whichever of its threads forked them; the adopted and the dead that nobody waited for too."""
    found: list[int] = []
    for task in Path(f"/proc/{of}/task").iterdir():
        # A thread may end meanwhile.
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


@dataclass(frozen=True, slots=True)
class _Process:
    """A process id, and the moment in which its process started: another process may have the id later."""

    pid: int
    started: str


class Leftovers:
    """The processes below this one that nobody waits for any more, such as what a dead training has forked.

    Each `turn()` passes over them and stops whatever runs, because a stopped process forks no more. Once a pass finds
    nothing that runs, all are killed. The next turn finds what escaped: no process can leave its ancestors.
    """

    def __init__(self, is_ours: Callable[[int], bool]) -> None:
        """`is_ours` tells the children of this process that are not to be touched."""
        self._is_ours = is_ours
        self._stopped: set[_Process] = set()

    def turn(self) -> list[int]:
        """The children that are left after one more turn. An empty list: nothing is left, however deep it was."""
        until = time.monotonic() + TURN_SECONDS
        while roots := self._living():
            running = [process for root in roots for process in _with_descendants(root) if process not in self._stopped]
            if not running:
                for process in self._stopped:
                    _signal(process, signal.SIGKILL)
                self._stopped.clear()
                return roots
            self._stopped.update(process for process in running if _signal(process, signal.SIGSTOP))
            if time.monotonic() > until:
                # Whoever forks faster than it is stopped must not keep this process from everything else.
                return roots
        self._stopped.clear()
        return []

    def end(self) -> None:
        """Turns until nothing is left, for as long as the kernel takes to end it."""
        while self.turn():
            time.sleep(PAUSE_SECONDS)

    def _living(self) -> list[int]:
        """After the dead were waited for. What they had forked is ours by then."""
        while True:
            roots = [pid for pid in children() if not self._is_ours(pid)]
            dead = [pid for pid in roots if _is_reaped(pid)]
            if not dead:
                return roots


def kill_user(uid: int, as_whom: int) -> None:
    """Kills every process of a user in one call of the kernel, in which none of them can fork.

    For that call this process has the user's rights to signal others, and `as_whom`, a uid that nobody has, keeps the
    user from signalling this process. Needs root and a single thread. Clears PDEATHSIG, like every change of a uid.
    """
    os.setresuid(as_whom, uid, 0)
    try:
        # A process with the right to signal everybody would now kill everybody: init is the one to try that on.
        os.kill(1, 0)
    except PermissionError:
        with suppress(OSError):
            os.kill(-1, signal.SIGKILL)
    finally:
        os.setresuid(0, 0, 0)


def uid_of(pid: int) -> int | None:
    """The real uid of a process. The owner of its folder in /proc may be root instead."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))
    return None


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        # Another thread of ours was faster.
        return True


def _with_descendants(root: int) -> Iterator[_Process]:
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            fields = _stat(pid)
            if fields[0] not in _DEAD:
                yield _Process(pid, fields[_STARTED])
            waiting += children(pid)


def _signal(process: _Process, number: signal.Signals) -> bool:
    """Whether this very process is there to be signalled."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if _stat(process.pid)[_STARTED] != process.started:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _stat(pid: int) -> list[str]:
    """From the state on. The name before it may hold anything, but ends with the last parenthesis."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def remove_ipc(uid: int) -> None:
    """Removes a user's System V memory, semaphores and queues, which outlive every process."""
    for kind, remove in (("shm", _libc.shmctl), ("sem", _libc.semctl), ("msg", _libc.msgctl)):
        with suppress(OSError):
            header, *rows = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
            names = header.split()
            for row in rows:
                values = dict(zip(names, map(int, row.split()), strict=False))
                if uid in (values["uid"], values["cuid"]):
                    arguments = (values[f"{kind}id"], 0) if kind == "sem" else (values[f"{kind}id"],)
                    remove(*arguments, _IPC_RMID, None)
