"""Whom training becomes where its node is root's, and the folders that are made his.

make_room(…), give(…), hand_over(…)    by the supervisor: what training writes to is training's
user.become()                          by what the warm parent has forked, before it reads its order; and for good
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict

from worker.linux import no_new_privileges

NOBODY = 65_530
"""A uid that is never training's nor anybody's. Neither Debian nor systemd gives those from 65520 on to anybody, and a
container that maps uids maps these."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class User(BaseModel):
    """Whom training becomes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str | None = None
    """None: it has none, and an attempt's temporary folder is as good."""
    is_shared: bool = True
    """Other processes may run as this user. False: all that do belong to one attempt, and may be killed at once."""

    def __str__(self) -> str:
        return f"user {self.name}" if self.name != str(self.uid) else f"uid {self.uid}"

    def become(self) -> None:
        """For good: neither this process nor what it starts has any more. It clears PDEATHSIG; and the kernel shows its
        memory and environment from now on to root alone, not to others of the same uid."""
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        no_new_privileges()

    def environment(self, scratch: str) -> dict[str, str]:
        """Where libraries look for a user's own things: the node's are closed to it."""
        home = self.home or scratch
        return {"HOME": home, "XDG_CACHE_HOME": f"{home}/.cache", "USER": self.name, "LOGNAME": self.name}


@dataclass(frozen=True, slots=True)
class Rights:
    """Of all of a node's training."""

    user: User | None = None
    """None: the node's own."""
    exposed: str | None = None
    """Where these are root's: why, in a sentence."""


def give(folder: Path, user: User) -> None:
    """A folder of root's becomes training's. What is somebody else's stays his: another node's training may be at work
    there already. Nothing but the folder itself, whatever lies there under its name by now."""
    handle = os.open(folder, _FOLDER)
    try:
        if os.fstat(handle).st_uid == os.geteuid():
            os.fchown(handle, user.uid, user.gid)
    finally:
        os.close(handle)


def make_room(root: Path, below: PurePosixPath, user: User) -> Path:
    """A folder that training writes to, in one that it does not."""
    at = make_way(root, below)
    give(at, user)
    return at


def make_way(root: Path, below: PurePosixPath) -> Path:
    """Folders that stay root's, so that nobody can put a link there, and let everybody pass, whatever the umask is."""
    at = root
    for part in below.parts:
        at /= part
        with suppress(FileExistsError):
            at.mkdir()
            at.chmod(0o755)
    return at


def hand_over(root: Path, below: PurePosixPath, user: User) -> None:
    """What was fetched for training: everybody may read it, whatever the umask is, and what lies below is training's.
    Nobody but root has been there yet, so that there is no link in it."""
    own = root / below
    for parent, folders, names in os.walk(root, topdown=False):
        for path in (Path(parent, name) for name in (*names, *folders)):
            if path.is_relative_to(own):
                os.chown(path, user.uid, user.gid)
            else:
                path.chmod(0o755 if path.is_dir() else 0o644)
