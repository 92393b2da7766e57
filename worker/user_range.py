"""Gives each attempt on a machine a user of its own, if root starts the machine's nodes.

All nodes of a machine use one folder of locks, with one file for each uid. The file is locked as long as any process of
an attempt runs as that user. So two attempts that run at the same time never share a user.

A job on several nodes needs the same user on all of them, because they write to one folder. Its user is derived from
the job and the attempt. Other attempts take any free user.
"""

from __future__ import annotations

import os
import random
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from footplate.contract.host.linux import try_lock
from footplate.contract.host.user import User, change_owner, remove_public_files
from footplate.contract.ids import JobId

LOCKS = Path("/run/footplate-users")
"""The folder of locks, which only root can write to. All nodes of a machine use this one."""


class UserRange(BaseModel):
    """The uids from `first` to `last`. The upper half is for jobs on several nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: int
    last: int

    def __str__(self) -> str:
        return f"uids {self.first} to {self.last}"

    @property
    def example(self) -> User:
        return _user(self.first)

    def choices(self, job: JobId, attempt: int, nodes: int) -> Iterator[int]:
        """Yields the uids that an attempt may have, in the order in which to try them."""
        half = (self.last - self.first + 1) // 2
        if nodes > 1:
            yield self.first + half + zlib.crc32(f"{job}/{attempt}".encode()) % (self.last - self.first + 1 - half)
            return
        # The search starts at a random uid, so that a uid is used again as late as possible.
        begin = random.SystemRandom().randrange(half)
        yield from (self.first + (begin + number) % half for number in range(half))


@dataclass(frozen=True, slots=True)
class ReservedUser:
    """A user that is reserved for one attempt until every copy of `lock` is closed."""

    user: User
    lock: int

    def lend(self, folders: Iterable[Path]) -> None:
        """Records in the lock's file which folders belong to the user now.

        If this process is killed, the next attempt with this user makes them root's again.
        """
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, "\n".join(map(str, folders)).encode(), 0)

    def take_back(self) -> None:
        """Makes root the owner of the recorded folders, and removes the user's files in public folders."""
        text = os.pread(self.lock, os.fstat(self.lock).st_size, 0).decode(errors="replace")
        for line in text.splitlines():
            with suppress(OSError):
                change_owner(Path(line), self.user.uid, os.geteuid(), os.getegid())
        remove_public_files(self.user)
        os.ftruncate(self.lock, 0)


@dataclass(frozen=True, slots=True)
class Rights:
    """The operating-system users that run training on a node."""

    users: UserRange | None = None
    """The range from which each attempt gets a user of its own."""
    user: User | None = None
    """The user of all attempts if there is no range. None means the node's own user."""
    exposed: str | None = None
    """The reason why training has root's rights, as a sentence. None if it does not."""

    @property
    def is_given_up(self) -> bool:
        """True if training runs as another user than its node."""
        return self.users is not None or self.user is not None


def lock_folder(instead: Path) -> Path:
    """Returns the folder of the uids' locks. If /run is read-only, returns `instead`, a folder of this node alone."""
    with suppress(OSError):
        LOCKS.mkdir(mode=0o700, exist_ok=True)
        if os.access(LOCKS, os.W_OK | os.X_OK):
            return LOCKS
    return instead


def reserve_user(users: UserRange, locks: Path, job: JobId, attempt: int, nodes: int) -> ReservedUser | None:
    """Reserves a user of the range for an attempt. Returns None if other attempts have reserved all of them."""
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    for uid in users.choices(job, attempt, nodes):
        lock = os.open(locks / str(uid), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if try_lock(lock):
            reserved_user = ReservedUser(_user(uid), lock)
            if os.fstat(lock).st_size:
                # The last attempt with this user was killed together with its supervisor.
                reserved_user.take_back()
            return reserved_user
        os.close(lock)
    return None


def parse_range(text: str) -> UserRange | None:
    """Parses a range such as `60600-61111`. Returns None if the text is not a range."""
    match = re.fullmatch(r"(\d{1,10})\s*-\s*(\d{1,10})", text)
    return UserRange(first=int(match[1]), last=int(match[2])) if match else None


def _user(uid: int) -> User:
    return User(name=str(uid), uid=uid, gid=uid, is_shared=False)
