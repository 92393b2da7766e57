"""A user of its own for each attempt that runs on a machine, where root starts its nodes.

All of a machine's nodes take users from one folder of locks: a file for each uid, locked as long as an attempt, or
anything that the attempt has started, runs as that user. So two attempts that run at the same time never share a user.
Nodes that share a store must agree on the user of a job that runs on several of them, because all of these write to one
folder: that user follows from the job and the attempt. Other attempts take any user that is free.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from footplate.contract.host.user import User, take_over, tidy_up
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
        """The uids that an attempt may have, in the order in which to try them."""
        half = (self.last - self.first + 1) // 2
        if nodes > 1:
            yield self.first + half + zlib.crc32(f"{job}/{attempt}".encode()) % (self.last - self.first + 1 - half)
            return
        # Not the first that is free: a uid is used again as late as possible.
        begin = random.SystemRandom().randrange(half)
        yield from (self.first + (begin + number) % half for number in range(half))


@dataclass(frozen=True, slots=True)
class Held:
    """A user that one attempt alone has, until every copy of `lock` is closed."""

    user: User
    lock: int

    def lend(self, folders: Iterable[Path]) -> None:
        """Remembers in the lock's file which folders are the user's for now. If this process is killed, whoever takes
        the user next finds them there."""
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, "\n".join(map(str, folders)).encode(), 0)

    def take_back(self) -> None:
        """What the user owns is root's again, or removed."""
        text = os.pread(self.lock, os.fstat(self.lock).st_size, 0).decode(errors="replace")
        for line in text.splitlines():
            with suppress(OSError):
                take_over(Path(line), self.user)
        tidy_up(self.user)
        os.ftruncate(self.lock, 0)


@dataclass(frozen=True, slots=True)
class Rights:
    """Of a node's training."""

    users: UserRange | None = None
    """Each attempt has one of these to itself."""
    user: User | None = None
    """All training runs as this user, if there is no range. None: as the node's own user."""
    exposed: str | None = None
    """Why these are root's rights, in a sentence. None: they are not."""

    @property
    def is_given_up(self) -> bool:
        """Whether training is another user than its node."""
        return self.users is not None or self.user is not None


def lock_folder(instead: Path) -> Path:
    """The folder of locks; if a container's /run is read-only, another one, for this node alone."""
    with suppress(OSError):
        LOCKS.mkdir(mode=0o700, exist_ok=True)
        if os.access(LOCKS, os.W_OK | os.X_OK):
            return LOCKS
    return instead


def hold(users: UserRange, locks: Path, job: JobId, attempt: int, nodes: int) -> Held | None:
    """A user for this attempt. None: another attempt has it, or all of them are taken."""
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    for uid in users.choices(job, attempt, nodes):
        lock = os.open(locks / str(uid), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = Held(_user(uid), lock)
            if os.fstat(lock).st_size:
                # Lent to an attempt that was killed together with its supervisor.
                held.take_back()
            return held
        os.close(lock)
    return None


def parsed(text: str) -> UserRange | None:
    """The range that `60600-61111` says. None: the text says something else."""
    found = re.fullmatch(r"(\d{1,10})\s*-\s*(\d{1,10})", text)
    return UserRange(first=int(found[1]), last=int(found[2])) if found else None


def _user(uid: int) -> User:
    return User(name=str(uid), uid=uid, gid=uid, is_shared=False)
