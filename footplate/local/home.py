"""The state folder: who holds it, and where things lie in it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SOCKET_PATH_LIMIT = 100
"""The kernel takes 107 bytes for a Unix socket's path; below this one is surely short enough."""


class Busy(Exception):
    """Another `footplate up` holds this home."""


class NoHome(Exception):
    """No state can be kept there."""


@dataclass(frozen=True)
class Home:
    path: Path

    @property
    def url_file(self) -> Path:
        """Written by the service once it listens."""
        return self.run / "url"

    @property
    def run(self) -> Path:
        """Sockets: for us alone, since whoever can talk to Redis can start jobs."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def first_job(self) -> Path:
        """The id of the job that the first start submitted."""
        return self.path / "first-job"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"


@contextmanager
def hold(path: Path) -> Iterator[Home]:
    """The home, made where it is missing and locked for as long as we live. The kernel frees it however we end."""
    home = Home(path)
    with _make(home) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(_who_holds(path, lock.fileno())) from None
        note_holder(home, url=None)
        yield home
        home.url_file.unlink(missing_ok=True)


def _make(home: Home) -> IO[str]:
    """The folder with what every start needs, and its lock file, open."""
    try:
        home.logs.mkdir(parents=True, exist_ok=True)
        home.run.mkdir(exist_ok=True)
        for closed in (home.run, home.logs):
            closed.chmod(0o700)
        return (home.path / "up.lock").open("a+")
    except OSError as error:
        raise NoHome(
            f"{home.path} cannot hold the state: {error.strerror}. Set FOOTPLATE_HOME to a folder that you may write."
        ) from error


def note_holder(home: Home, url: str | None) -> None:
    """Writes who we are into the lock file, for the sentence that the next one gets."""
    (home.path / "up.lock").write_text(json.dumps({"pid": os.getpid(), "url": url}))


def _who_holds(path: Path, lock: int) -> str:
    who = "another process"
    with suppress(ValueError, KeyError):
        holder = json.loads(os.pread(lock, 4096, 0))
        who = f"process {holder['pid']}" + (f" at {holder['url']}" if holder["url"] else ", which is still starting")
    return f"{path} is in use by {who}. Stop that one, or start beside it with FOOTPLATE_HOME set to another folder."
