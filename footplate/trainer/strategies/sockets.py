"""Closes torch's sockets between processes, so that no process waits for one that has failed.

torch has no function for that. Its own shutdown first waits for pending messages, and a message that another process
never answers is pending until ddp_timeout.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_opened: set[int] = set()
"""The inodes of the sockets, because a descriptor's number may be reused."""


@contextmanager
def opening() -> Iterator[None]:
    """Registers the sockets that are opened inside the `with` block as connections between processes."""
    before = {inode for inode, _ in _sockets()}
    try:
        yield
    finally:
        _opened.update(inode for inode, _ in _sockets() if inode not in before)


def cut() -> None:
    """Shuts the connections down, so that pending messages fail at both ends.

    The connection to torch's store stays open, because processes report their errors through it.
    """
    store = int(os.environ.get("MASTER_PORT", "0"))
    for inode, descriptor in _sockets():
        # A listening socket has no other end, and getpeername() raises OSError.
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
            is_opened = inode in _opened and os.fstat(copy.fileno()).st_ino == inode
            is_network = copy.family in (socket.AF_INET, socket.AF_INET6)
            if is_opened and is_network and store not in (copy.getsockname()[1], copy.getpeername()[1]):
                copy.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[tuple[int, int]]:
    with suppress(OSError):  # only Linux has /proc
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the descriptor was closed meanwhile
                status = os.fstat(int(name))
                if stat.S_ISSOCK(status.st_mode):
                    yield status.st_ino, int(name)
