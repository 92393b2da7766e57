"""Whose rights training has on this node: if root starts the node, those of a user who owns nothing and can work here.
At the node's start a child becomes that user and tries.

`FOOTPLATE_TRAINING_USER` names a range of uids, of which each attempt has one to itself, or one user for all. If the
setting is empty and no user of the usual range can work here, training has the node's own rights. The node says why.
"""

from __future__ import annotations

import logging
import os
import pwd
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from footplate.contract import layout
from footplate.contract.errors import SettingsError
from footplate.contract.host.environment import EXTENSIONS
from footplate.contract.host.node_folder import Places
from footplate.contract.host.scratch import remove, temporary
from footplate.contract.host.user import NOBODY, User, close_to_lists, make_room
from worker.settings import WorkerSettings
from worker.user_range import Rights, UserRange, parsed

log = logging.getLogger("footplate.worker")

USUAL = UserRange(first=60_600, last=61_111)
"""Training's uids if the setting is empty. Neither Debian nor systemd gives these to anybody, and a container that maps
65,536 uids maps these."""
_UNLISTED = ("jobs", str(layout.UPLOADS), str(layout.bundle_file("").parent))
"""Folders of the artifact store in which only the service and root look around."""
_TRIED = ".tmp-rights"
"""Folders in which the child tries. Backups pass over names that begin so."""


def settled(settings: WorkerSettings, places: Places) -> Rights:
    """Raises SettingsError where the operator named a user that training cannot be."""
    wanted = settings.training_user
    users = _range(wanted, settings) if wanted else USUAL
    named = _named(wanted) if wanted and users is None else None
    if os.geteuid() != 0:
        if wanted and users is not None:
            raise _unusable(wanted, "only a node that root starts can give training users of its own")
        if named is not None and named.uid != os.geteuid():
            raise _unusable(wanted, "only a node that root starts can give training a user of its own")
        return Rights()
    if named is not None and named.uid == 0:
        return _said(Rights(exposed="as FOOTPLATE_TRAINING_USER says, training has all of this node's rights: root's"))
    user = named or (users or USUAL).example
    why = _hindrance(user, settings, places)
    if why is None:
        if settings.bucket is None and settings.artifacts_path.is_dir():
            close_to_lists(settings.artifacts_path, _UNLISTED)
        return _said(Rights(user=named, users=users))
    if wanted:
        raise _unusable(wanted, why)
    text = f"training has all of this node's rights, root's, because {user} could not work here: {why}"
    return _said(Rights(exposed=f"{text}. Mend that and start the node again; or say FOOTPLATE_TRAINING_USER=root"))


def _range(text: str, settings: WorkerSettings) -> UserRange | None:
    users = parsed(text)
    if users is None:
        return None
    if not 0 < users.first <= users.last < 2**32 - 1 or users.first <= NOBODY <= users.last:
        raise _unusable(text, f"a range goes from a smaller uid to a larger one, without 0 and {NOBODY}")
    if users.last - users.first + 1 < 2 * max(settings.slots, 1):
        raise _unusable(text, f"{settings.slots or 1} slots need a range of {2 * max(settings.slots, 1)} uids or more")
    return users


def _named(text: str) -> User:
    """A name, or a number that need not be anybody's yet."""
    try:
        known = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
    except (KeyError, OverflowError):
        if text == str(NOBODY):
            raise _unusable(text, "this uid is nobody's; another one, or a range of uids, would work") from None
        if text.isdecimal() and 0 < int(text) < 2**32 - 1:
            return User(name=text, uid=int(text), gid=int(text))
        raise _unusable(text, "this machine knows no such user; a name or a uid would work") from None
    groups = tuple(os.getgrouplist(known.pw_name, known.pw_gid))
    home = known.pw_dir if os.path.isdir(known.pw_dir) and os.stat(known.pw_dir).st_uid == known.pw_uid else None
    return User(name=known.pw_name, uid=known.pw_uid, gid=known.pw_gid, groups=groups, home=home)


def _unusable(wanted: str, why: str) -> SettingsError:
    return SettingsError(f"FOOTPLATE_TRAINING_USER={wanted!r} cannot be used: {why}.")


def _said(rights: Rights) -> Rights:
    if rights.exposed is not None:
        log.warning("%s", rights.exposed)
    else:
        log.info("training runs as %s", rights.user or f"one of {rights.users} for each attempt")
    return rights


# Whether it works


def _hindrance(user: User, settings: WorkerSettings, places: Places) -> str | None:
    """What would keep training from working as this user, found by one who tries; None: nothing."""
    try:
        with _rooms(user, settings, places) as rooms:
            return _in_a_child(user, rooms, list(_read(settings)))
    except OSError as error:
        return f"{error.filename or 'a folder'} cannot be given to it: {error.strerror}"


@contextmanager
def _rooms(user: User, settings: WorkerSettings, places: Places) -> Iterator[list[Path]]:
    """One in each place where training gets folders to write to. A store that is not there yet says nothing."""
    store = places.work if settings.bucket else settings.artifacts_path
    roots = [places.root / EXTENSIONS, temporary()]
    roots += [store] if settings.bucket or store.is_dir() else []
    made: list[Path] = []
    try:
        for root in roots:
            made.append(root / f"{_TRIED}-{os.getpid()}")
            make_room(root.parent, PurePosixPath(root.name, made[-1].name), user)
        yield made
    finally:
        for each in made:
            remove(each)


def _read(settings: WorkerSettings) -> Iterator[Path]:
    """What it has to read: Python, the packages, ours, and what jobs name."""
    yield Path(sys.executable)
    yield Path(sysconfig.get_paths()["stdlib"])
    yield Path(__file__).parent
    # The folder that the node was started in is there for ours alone, and those were just named.
    yield from (Path(entry) for entry in sys.path if os.path.isabs(entry) and Path(entry) != Path.cwd())
    yield from (settings.data_path, settings.models_path)
    if settings.hub == "on":
        yield settings.hub_path
    if settings.stores_allow:
        yield settings.stores_path
    if settings.bucket is None:
        # Training opens uploads and bundles by their names and never lists them: only the way to a name has to be open.
        yield settings.artifacts_path / layout.UPLOADS / "any"
        yield settings.artifacts_path / layout.bundle_file("any")


def _in_a_child(user: User, rooms: list[Path], read: list[Path]) -> str | None:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, (_tries(user, rooms, read) or "").encode()[:4000])
        except BaseException as error:
            os.write(writing, f"it cannot be become: {error}".encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return told or None


def _tries(user: User, rooms: list[Path], read: list[Path]) -> str | None:
    user.become()
    with suppress(PermissionError):
        os.setuid(0)
        return "this node's root lets nobody give up his rights: its securebits say so"
    found = [_closed(path) for path in read]
    found += [_unwritable(room) for room in rooms]
    found += [_closed(path, os.R_OK | os.W_OK) for path in Path("/dev").glob("nvidia*") if not path.is_dir()]
    return next((why for why in found if why is not None), None)


def _closed(path: Path, needed: int = os.R_OK) -> str | None:
    """The first on the way that it may not pass; what is not there is nobody's trouble."""
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK):
            return f"it may not pass {folder}, on the way to {path}" if os.path.lexists(folder) else None
    if not os.path.exists(path):
        return None
    needed |= os.X_OK if path.is_dir() else 0
    return None if os.access(path, needed) else f"it may not use {path}"


def _unwritable(room: Path) -> str | None:
    if (why := _closed(room)) is not None:
        return why
    try:
        (room / "tried").touch()
    except OSError as error:
        return f"it cannot write to {room.parent}: {error.strerror}"
    return None
