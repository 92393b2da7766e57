"""Whom training becomes where its node is root's, and the folders that are made his.

make_room(…), give(…), hand_over(…)    by the supervisor: what training writes to is training's
user.become()                          by what the warm parent has forked, before it reads its order; and for good
take_over(…), tidy_up(…)               by the supervisor: what training has left is root's, or is removed
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict

from footplate.contract.host.linux import no_new_privileges, remove_ipc
from footplate.contract.layout import PASSED_ONLY

NOBODY = 60_599
"""A uid that is never training's nor anybody else's."""
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
        # The next attempt is another user: a checkpoint that only its writer may read would be lost with its node.
        os.umask(0o022)
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        no_new_privileges()

    def environment(self, scratch: str) -> dict[str, str]:
        """Where libraries look for a user's own things: the node's are closed to it."""
        home = self.home or scratch
        return {"HOME": home, "XDG_CACHE_HOME": f"{home}/.cache", "USER": self.name, "LOGNAME": self.name}


def give(folder: Path, user: User, group: int | None = None) -> None:
    """A folder of root's becomes training's. What is somebody else's stays his: another node's training may be at work
    there already. Nothing but the folder itself, whatever lies there under its name by now."""
    handle = os.open(folder, _FOLDER)
    try:
        if os.fstat(handle).st_uid == os.geteuid():
            os.fchown(handle, user.uid, user.gid if group is None else group)
    finally:
        os.close(handle)


def make_room(root: Path, below: PurePosixPath, user: User, *, is_passed: bool = False) -> Path:
    """A folder that training writes to, in one that it does not. Only the root folder's group may list the folder,
    as a service does that is neither root nor training. If `is_passed`, others may open what they know the name of."""
    at = make_way(root, below)
    if at.stat().st_uid == os.geteuid():
        at.chmod(0o751 if is_passed else 0o750)
    give(at, user, group=root.stat().st_gid)
    return at


def make_way(root: Path, below: PurePosixPath) -> Path:
    """Folders that stay root's, so that nobody can put a link there. Everybody may pass them, and nobody list them:
    whoever does not know a job's id does not find its folder."""
    at = root
    for part in below.parts:
        at /= part
        with suppress(FileExistsError):
            at.mkdir()
            at.chmod(PASSED_ONLY)
    return at


def close_to_lists(root: Path, names: Iterable[str]) -> None:
    """The same for folders that are there already. A store whose root folder is not root's stays as it is: its service
    may be another user, who has to list them."""
    if root.stat().st_uid != os.geteuid():
        return
    for name in names:
        with suppress(FileNotFoundError):
            handle = os.open(root / name, _FOLDER)
            try:
                if os.fstat(handle).st_uid == os.geteuid():
                    os.fchmod(handle, PASSED_ONLY)
            finally:
                os.close(handle)


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


def take_over(folder: Path, user: User) -> None:
    """What training has left becomes root's: everybody who finds the folder may read it, and nobody may change it.
    None of the user's processes may be left, because files are reached by their names."""
    change_owner(folder, user.uid, os.geteuid(), os.getegid())


def change_owner(folder: Path, was: int, uid: int, gid: int) -> None:
    """Of a folder, and of all in it that `was` owns; not of what a link leads to, nor of another user's file that has a
    second name here."""
    for _, folders, names, at in os.fwalk(folder, follow_symlinks=False):
        for name in (*names, *folders):
            _change_owner(name, at, was, uid, gid)
    _change_owner(str(folder), None, was, uid, gid)


def _change_owner(name: str, at: int | None, was: int, uid: int, gid: int) -> None:
    about = os.stat(name, dir_fd=at, follow_symlinks=False)
    if about.st_uid != was:
        return
    os.chown(name, uid, gid, dir_fd=at, follow_symlinks=False)
    if stat.S_ISDIR(about.st_mode):
        os.chmod(name, 0o755, dir_fd=at)
    elif stat.S_ISREG(about.st_mode):
        os.chmod(name, (about.st_mode | 0o444) & 0o755, dir_fd=at)


def tidy_up(user: User) -> None:
    """Removes what a user has left where everybody may write, before another attempt is this user."""
    for folder in {tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue"}:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == user.uid:
                        _remove(entry)
    remove_ipc(user.uid)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        os.unlink(entry.path)
