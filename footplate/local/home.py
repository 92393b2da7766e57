"""The home of a one-machine set-up, a folder with all state: its lock, and the paths of the files in it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from footplate.contract.host.linux import try_lock
from footplate.local.processes import Failed

SOCKET_PATH_LIMIT = 100
"""The longest path of a Unix socket, in bytes. The kernel accepts up to 107."""
TRIES, LOOK_SECONDS = 5, 0.02
"""The number of tries to lock a home, and the time between two tries."""
RECORD_BYTES = 1024
"""The length of the record in the lock file. Each record replaces all bytes of the one before, in a single write."""


@dataclass(frozen=True)
class Home:
    path: Path

    @property
    def url_file(self) -> Path:
        """The file to which the service writes its URL once it listens."""
        return self.run / "url"

    @property
    def run(self) -> Path:
        """The folder of sockets, which only this user may open, because a client of Redis can start jobs."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def first_job(self) -> Path:
        """The file with the id of the job that the first start submitted."""
        return self.path / "first-job"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"


@contextmanager
def hold(path: Path) -> Iterator[Home]:
    """Creates the home if needed, and locks it until this process ends. The kernel unlocks it after a crash, too."""
    home = Home(path)
    with _usable(home):
        home.logs.mkdir(parents=True, exist_ok=True)
        home.run.mkdir(exist_ok=True)
        for folder in (home.run, home.logs):
            folder.chmod(0o700)
        lock = (path / "up.lock").open("a+")
    with lock:
        # A client that looks whether the home is in use locks the file for a moment, too.
        for _ in range(TRIES):
            if try_lock(lock.fileno()):
                break
            time.sleep(LOOK_SECONDS)
        else:
            raise Failed(_holder_text(path, lock.fileno()))
        with _usable(home):
            record_holder(home, url=None)
        yield home
        home.url_file.unlink(missing_ok=True)
        lock.truncate(0)


@contextmanager
def _usable(home: Home) -> Iterator[None]:
    """Raises Failed instead of an OSError."""
    try:
        yield
    except OSError as error:
        raise Failed(
            f"{home.path} cannot hold the state: {error.strerror}. "
            "Set FOOTPLATE_HOME to a folder that you may write, on a disk with space left."
        ) from error


def record_holder(home: Home, url: str | None) -> None:
    """Writes this process's pid and URL into the lock file. Another process that needs the home shows them."""
    with (home.path / "up.lock").open("r+b", buffering=0) as lock:
        lock.write(json.dumps({"pid": os.getpid(), "url": url}).encode().ljust(RECORD_BYTES))


def _holder_text(path: Path, lock: int) -> str:
    owner = "another process"
    with suppress(ValueError, KeyError):
        holder = json.loads(os.pread(lock, 4096, 0))
        owner = f"process {holder['pid']}" + (f" at {holder['url']}" if holder["url"] else ", which is still starting")
    return f"{path} is in use by {owner}. Stop that one, or start beside it with FOOTPLATE_HOME set to another folder."
