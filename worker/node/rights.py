"""Chooses the operating-system users that training runs as on this node.

If root starts the node, training runs as a user that owns nothing. At the node's start a child process becomes that
user, and tests whether training could work on this machine.

`FOOTPLATE_TRAINING_USER` names a range of uids, of which each attempt gets one, or one user for all attempts. If the
setting is empty and no user of the usual range can work here, training has the node's own rights. Heartbeats and the
log then contain the reason.
"""

from __future__ import annotations

import logging
import os
import pwd
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from footplate.contract import layout
from footplate.contract.errors import SettingsError
from footplate.contract.host.environment import EXTENSIONS
from footplate.contract.host.node_folder import NodeFolder
from footplate.contract.host.scratch import remove, temporary
from footplate.contract.host.user import NOBODY, User, close_to_lists, make_writable_folder
from worker.settings import WorkerSettings
from worker.user_range import Rights, UserRange, parse_range

log = logging.getLogger("footplate.worker")

USUAL = UserRange(first=60_600, last=61_111)
"""The uids of training if the setting is empty. Debian and systemd do not assign them, and a container that maps 65,536
uids has them."""
_UNLISTED = ("jobs", str(layout.UPLOADS), str(layout.bundle_file("").parent))
"""Folders of the artifact store that only the service and root may list."""
_TEST_PREFIX = ".tmp-rights"
"""The prefix of the folders in which the child process writes for its test. Backups skip names with this prefix."""


def training_rights(settings: WorkerSettings, folder: NodeFolder) -> Rights:
    """Returns training's users. Raises SettingsError if the operator named a user that training cannot run as."""
    setting = settings.training_user
    users = _range(setting, settings) if setting else USUAL
    named_user = _named(setting) if setting and users is None else None
    if os.geteuid() != 0:
        if setting and (named_user is None or named_user.uid != os.geteuid()):
            instead = "start it as root or unset the variable"
            raise _unusable(setting, f"only a node that root starts can run training as other users; {instead}")
        return Rights()
    if named_user is not None and named_user.uid == 0:
        exposed = "FOOTPLATE_TRAINING_USER is root, so training has all rights on this node"
        return _logged(Rights(exposed=exposed))
    user = named_user or (users or USUAL).example
    why = _obstacle(user, settings, folder)
    if why is None:
        if settings.bucket is None and settings.artifacts_path.is_dir():
            close_to_lists(settings.artifacts_path, _UNLISTED)
        return _logged(Rights(user=named_user, users=users))
    if setting:
        raise _unusable(setting, why)
    text = f"training runs as root, with all rights of this node, because {user} cannot run here: {why}"
    return _logged(Rights(exposed=f"{text}. Fix that and restart the node, or set FOOTPLATE_TRAINING_USER=root"))


def _range(text: str, settings: WorkerSettings) -> UserRange | None:
    users = parse_range(text)
    if users is None:
        return None
    if not 0 < users.first <= users.last < 2**32 - 1 or users.first <= NOBODY <= users.last:
        why = f"a range must go from a smaller uid to a larger one, and must not contain 0 or {NOBODY}"
        raise _unusable(text, why)
    if users.last - users.first + 1 < 2 * max(settings.slots, 1):
        raise _unusable(text, f"{settings.slots or 1} slots need a range of {2 * max(settings.slots, 1)} uids or more")
    return users


def _named(text: str) -> User:
    """Returns the user with this name or uid. A uid needs no entry in the machine's user database."""
    try:
        entry = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
    except (KeyError, OverflowError):
        if text == str(NOBODY):
            raise _unusable(text, "this is the uid of nobody; use another uid, or a range of uids") from None
        if text.isdecimal() and 0 < int(text) < 2**32 - 1:
            return User(name=text, uid=int(text), gid=int(text))
        raise _unusable(text, "this machine has no such user; use the name of an existing user, or a uid") from None
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    home = entry.pw_dir if os.path.isdir(entry.pw_dir) and os.stat(entry.pw_dir).st_uid == entry.pw_uid else None
    return User(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, home=home)


def _unusable(setting: str, why: str) -> SettingsError:
    return SettingsError(f"FOOTPLATE_TRAINING_USER={setting!r} cannot be used: {why}.")


def _logged(rights: Rights) -> Rights:
    if rights.exposed is not None:
        log.warning("%s", rights.exposed)
    else:
        log.info("training runs as %s", rights.user or f"one of {rights.users} for each attempt")
    return rights


# ── Tests in a child process whether training could run as a user ────────────────────────────────────────────────


def _obstacle(user: User, settings: WorkerSettings, folder: NodeFolder) -> str | None:
    """Returns the reason why training could not work as this user, or None.

    A child process tests that with a new folder in each place that training writes to. An artifact store that does not
    exist is skipped.
    """
    store = folder.work if settings.bucket else settings.artifacts_path
    roots = [folder.root / EXTENSIONS, temporary()]
    roots += [store] if settings.bucket or store.is_dir() else []
    test_folders = [root / f"{_TEST_PREFIX}-{os.getpid()}" for root in roots]
    try:
        for root, path in zip(roots, test_folders, strict=True):
            make_writable_folder(root.parent, PurePosixPath(root.name, path.name), user)
        return _try_in_a_child(user, test_folders, list(_paths_read(settings)))
    except OSError as error:
        return f"the owner of {error.filename or 'a folder'} cannot be changed to that user: {error.strerror}"
    finally:
        for path in test_folders:
            remove(path)


def _paths_read(settings: WorkerSettings) -> Iterator[Path]:
    """Yields the paths that training reads: Python, the packages, Footplate, and the files that jobs name."""
    yield Path(sys.executable)
    yield Path(sysconfig.get_paths()["stdlib"])
    yield Path(__file__).parent
    # The working folder is in sys.path only for Footplate's own files, whose folder was yielded above.
    yield from (Path(entry) for entry in sys.path if os.path.isabs(entry) and Path(entry) != Path.cwd())
    yield from (settings.data_path, settings.models_path)
    if settings.hub == "on":
        yield settings.hub_path
    if settings.stores_allow:
        yield settings.stores_path
    if settings.bucket is None:
        # Training opens uploads and bundles by their names. So their folders must be passable, but not listable.
        yield settings.artifacts_path / layout.UPLOADS / "any"
        yield settings.artifacts_path / layout.bundle_file("any")


def _try_in_a_child(user: User, folders: list[Path], read_paths: list[Path]) -> str | None:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, (_first_obstacle(user, folders, read_paths) or "").encode()[:4000])
        except BaseException as error:
            os.write(writing, f"no process can become that user: {error}".encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        why = pipe.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return why or None


def _first_obstacle(user: User, folders: list[Path], read_paths: list[Path]) -> str | None:
    user.become()
    with suppress(PermissionError):
        os.setuid(0)
        return "the securebits of this process keep it from giving up root's capabilities"
    obstacles = [_closed(path) for path in read_paths]
    obstacles += [_unwritable(folder) for folder in folders]
    obstacles += [_closed(path, os.R_OK | os.W_OK) for path in Path("/dev").glob("nvidia*") if not path.is_dir()]
    return next((why for why in obstacles if why is not None), None)


def _closed(path: Path, access_mode: int = os.R_OK) -> str | None:
    """Returns a sentence about the first folder of a path that this process may not pass, or None.

    A path that does not exist is allowed.
    """
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK):
            return f"it has no permission to enter {folder}, on the way to {path}" if os.path.lexists(folder) else None
    if not os.path.exists(path):
        return None
    access_mode |= os.X_OK if path.is_dir() else 0
    return None if os.access(path, access_mode) else f"it has no permission to use {path}"


def _unwritable(folder: Path) -> str | None:
    if (why := _closed(folder)) is not None:
        return why
    try:
        (folder / "tried").touch()
    except OSError as error:
        return f"it cannot write to {folder.parent}: {error.strerror}"
    return None
