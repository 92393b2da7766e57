"""The user that training becomes if its node runs as root, and the folders that this user gets.

The supervisor calls `make_writable_folder`, `give` and `give_fetched_files` for folders that training writes to. A
child of the warm parent calls `become`, before it reads its order. When training has ended, the supervisor calls
`change_owner`, which makes root the owner of training's files, and `remove_public_files`.
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
from footplate.contract.safe_paths import folder_below

NOBODY = 60_599
"""A uid that no user has."""


class User(BaseModel):
    """The user that training becomes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str | None = None
    """The home folder. If None, the attempt's temporary folder is used."""
    is_shared: bool = True
    """True if other processes may run as this user. If False, all its processes belong to one attempt."""

    def __str__(self) -> str:
        return f"user {self.name}" if self.name != str(self.uid) else f"uid {self.uid}"

    def become(self) -> None:
        """Becomes this user forever, also for all children.

        This clears PDEATHSIG. From now on the kernel shows the memory and environment of this process to root only, not
        to other processes of the same uid.
        """
        # Files must be readable, because the next attempt is another user and has to read the checkpoint.
        os.umask(0o022)
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        no_new_privileges()

    def environment(self, scratch: str) -> dict[str, str]:
        """Returns HOME and similar variables for this user, because the node's own folders are closed to this user."""
        home = self.home or scratch
        return {"HOME": home, "XDG_CACHE_HOME": f"{home}/.cache", "USER": self.name, "LOGNAME": self.name}


def give(folder: Path, user: User, group: int | None = None) -> None:
    """Makes training's user the owner of a folder that root owns, but not of the files in the folder.

    A folder that another user owns does not change, because another node's training may use it already.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_uid == os.geteuid():
            os.fchown(handle, user.uid, user.gid if group is None else group)
    finally:
        os.close(handle)


def make_writable_folder(root: Path, below: PurePosixPath, user: User, *, is_passed: bool = False) -> Path:
    """Makes a folder that training may write to, below folders that training may not write to.

    Only the group of `root` may list the folder, for a service that is neither root nor training. If `is_passed`, other
    users may open files in the folder whose names they know.
    """
    at = make_passable_folders(root, below)
    if at.stat().st_uid == os.geteuid():
        at.chmod(0o751 if is_passed else 0o750)
    give(at, user, group=root.stat().st_gid)
    return at


def make_passable_folders(root: Path, below: PurePosixPath) -> Path:
    """Makes folders that stay root's, so that no user can put a link there.

    All users may pass through them, but not list them. Only someone who knows a job's id finds its folder.
    """
    at = root
    for part in below.parts:
        at /= part
        with suppress(FileExistsError):
            at.mkdir()
            at.chmod(PASSED_ONLY)
    return at


def close_to_lists(root: Path, names: Iterable[str]) -> None:
    """Sets the mode of existing folders below `root`, so that other users can open paths in them, but not list them.

    Nothing changes if the folder `root` belongs to another user than this process. That user may be the service,
    which has to list the folders.
    """
    if root.stat().st_uid != os.geteuid():
        return
    for name in names:
        with suppress(FileNotFoundError), folder_below(root, name) as handle:
            if os.fstat(handle).st_uid == os.geteuid():
                os.fchmod(handle, PASSED_ONLY)


def give_fetched_files(root: Path, below: PurePosixPath, user: User) -> None:
    """Gives the downloaded files below `below` to training's user, and lets all users read the others.

    There is no link among the files, because only root has written to the folder so far.
    """
    user_folder = root / below
    for parent, folders, names in os.walk(root, topdown=False):
        for path in (Path(parent, name) for name in (*names, *folders)):
            if path.is_relative_to(user_folder):
                os.chown(path, user.uid, user.gid)
            else:
                path.chmod(0o755 if path.is_dir() else 0o644)


def change_owner(folder: Path, old_uid: int, uid: int, gid: int) -> None:
    """Changes the owner of a folder and of all files in it that belong to `old_uid`. All users may then read them.

    Links are not followed. Hard links to files of other users do not change. All processes of training's user must have
    ended, because they could replace files by links meanwhile.
    """
    for _, folders, names, at in os.fwalk(folder, follow_symlinks=False):
        for name in (*names, *folders):
            _change_owner(name, at, old_uid, uid, gid)
    _change_owner(str(folder), None, old_uid, uid, gid)


def _change_owner(name: str, at: int | None, old_uid: int, uid: int, gid: int) -> None:
    about = os.stat(name, dir_fd=at, follow_symlinks=False)
    if about.st_uid != old_uid:
        return
    os.chown(name, uid, gid, dir_fd=at, follow_symlinks=False)
    if stat.S_ISDIR(about.st_mode):
        os.chmod(name, 0o755, dir_fd=at)
    elif stat.S_ISREG(about.st_mode):
        os.chmod(name, (about.st_mode | 0o444) & 0o755, dir_fd=at)


def remove_public_files(user: User) -> None:
    """Removes a user's files in public folders, before another attempt gets this user."""
    for folder in {tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue"}:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid != user.uid:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)
    remove_ipc(user.uid)
