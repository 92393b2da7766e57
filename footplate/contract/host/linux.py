"""System calls of Linux that the standard library does not wrap."""

from __future__ import annotations

import ctypes
import fcntl
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
"""The index of a process's start time in the list that `_stat` returns."""
_DEAD = ("Z", "X")
PAUSE_SECONDS = 0.002
"""The pause between two tries to kill leftover processes, in which the kernel ends the killed ones."""
TURN_SECONDS = 0.05
"""The longest time of one try to kill leftover processes. The caller does its other work between two tries."""

# The C library is loaded once, before any fork, so that no child process has to search for it.
_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Makes the kernel signal this process when the *thread* that forked it ends. If it has ended already, exits now.

    A fork and a change of the user clear this, so it is called again after each of them.
    """
    end_with_parent(by)
    if os.getppid() != parent:
        os._exit(1)


def end_with_parent(by: signal.Signals) -> None:
    """Makes the kernel signal this process when its forking thread ends, but not if that thread has ended before."""
    _call(_PR_SET_PDEATHSIG, int(by))


def adopt_orphans() -> None:
    """Makes orphaned grandchildren our children instead of init's."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    """Prevents this process and all its children from gaining rights through any program, setuid or not."""
    _call(_PR_SET_NO_NEW_PRIVS, 1)


def _call(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Locks an open file until all its descriptors are closed. Returns False if another process has the lock."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def kill_group(pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Signals a whole process group, if any process of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(pid, by)


def children(of: int | Literal["self"] = "self") -> list[int]:
    """Returns the children of a process, forked by any thread, with adopted ones and zombies."""
    pids: list[int] = []
    for task in Path(f"/proc/{of}/task").iterdir():
        # The thread may have ended since the threads were listed.
        with suppress(OSError):
            pids += map(int, (task / "children").read_text().split())
    return pids


@dataclass(frozen=True, slots=True)
class _Process:
    """A process id and the start time of its process, because another process may have the id later."""

    pid: int
    started: str


class Leftovers:
    """The processes below this one that no supervisor waits for, such as the children of a dead training.

    Each `turn()` lists them repeatedly and stops all that run, because a stopped process cannot fork. When none of them
    runs, all are killed. Processes that escaped are found in the next turn, because the children of a dead process
    become children of this one.
    """

    def __init__(self, is_ours: Callable[[int], bool]) -> None:
        """Takes a function that returns True for children of this process that must not be touched."""
        self._is_ours = is_ours
        self._stopped: set[_Process] = set()

    def turn(self) -> list[int]:
        """Stops or kills leftover processes, and returns this process's children that are left.

        The list is empty once all leftover processes have ended.
        """
        deadline = time.monotonic() + TURN_SECONDS
        while roots := self._living():
            running_processes = [
                process for root in roots for process in _with_descendants(root) if process not in self._stopped
            ]
            if not running_processes:
                for process in self._stopped:
                    _signal(process, signal.SIGKILL)
                self._stopped.clear()
                return roots
            self._stopped.update(process for process in running_processes if _signal(process, signal.SIGSTOP))
            if time.monotonic() > deadline:
                # If a process forks faster than it can be stopped, the caller does its other work before the next try.
                return roots
        self._stopped.clear()
        return []

    def end(self) -> None:
        """Kills all leftover processes, and returns when none is left."""
        while self.turn():
            time.sleep(PAUSE_SECONDS)

    def _living(self) -> list[int]:
        """Reaps dead children, and returns the living ones. Children of a dead child become this process's own."""
        while True:
            roots = [pid for pid in children() if not self._is_ours(pid)]
            dead_pids = [pid for pid in roots if _is_reaped(pid)]
            if not dead_pids:
                return roots


def kill_user(uid: int, as_whom: int) -> None:
    """Kills every process of a user in one system call, so that none of them can fork.

    During that call this process has the user's rights to send signals. `as_whom`, an unused uid, keeps the user from
    signalling this process. Needs root and a single thread. Clears PDEATHSIG, like every change of a uid.
    """
    os.setresuid(as_whom, uid, 0)
    try:
        # With the right to signal every process, kill(-1) would end all of them. Signalling init tests for that right.
        os.kill(1, 0)
    except PermissionError:
        with suppress(OSError):
            os.kill(-1, signal.SIGKILL)
    finally:
        os.setresuid(0, 0, 0)


def uid_of(pid: int) -> int | None:
    """Returns the real uid of a process. The owner of its folder in /proc may be root instead."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))
    return None


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        # Another thread of this process has already waited for this child.
        return True


def _with_descendants(root: int) -> Iterator[_Process]:
    unvisited_pids = [root]
    while unvisited_pids:
        pid = unvisited_pids.pop()
        with suppress(OSError):
            fields = _stat(pid)
            if fields[0] not in _DEAD:
                yield _Process(pid, fields[_STARTED])
            unvisited_pids += children(pid)


def _signal(process: _Process, number: signal.Signals) -> bool:
    """Signals a process. Returns False if the process has ended, even if a new process has the same id."""
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
    """Returns the fields of /proc/pid/stat after the name, which may hold any character and ends with the last `)`."""
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
