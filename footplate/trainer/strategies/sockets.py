"""The sockets between the processes. torch opens them and gives them no name; cut, nobody waits at them any more.

torch's own way to take them apart first waits for what is under way, and a message that another process will never
answer is under way for as long as ddp_timeout says.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_OVER_A_NETWORK = (socket.AF_INET, socket.AF_INET6)
_opened: set[int] = set()
"""By inode: a descriptor's number may since belong to something else."""


@contextmanager
def opening() -> Iterator[None]:
    """While it lasts, what is opened is a line."""
    before = {inode for inode, _ in _sockets()}
    try:
        yield
    finally:
        _opened.update(inode for inode, _ in _sockets() if inode not in before)


def cut() -> None:
    """A message that is under way then fails here and where it was to come from. The store, over which processes tell
    each other why, stays."""
    store = int(os.environ.get("MASTER_PORT", "0"))
    for inode, descriptor in _sockets():
        # One that listens has nobody at its other end.
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
            is_line = inode in _opened and os.fstat(line.fileno()).st_ino == inode and line.family in _OVER_A_NETWORK
            if is_line and store not in (line.getsockname()[1], line.getpeername()[1]):
                line.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[tuple[int, int]]:
    with suppress(OSError):  # not Linux
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # closed since
                found = os.fstat(int(name))
                if stat.S_ISSOCK(found.st_mode):
                    yield found.st_ino, int(name)
