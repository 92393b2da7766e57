"""A real PostgreSQL server for each pytest session, in a temporary folder, with a new database for each test."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.support.processes import die_with_parent, free_port, until

INSTALL = "apt-get install postgresql"
"""The command that installs what the skipped tests need."""

# The database of a test does not need to survive a power cut.
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200", "shared_buffers=64MB")


def programs() -> Path | None:
    """Returns the folder of the newest initdb and postgres, which Debian does not put on the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    on_path = [Path(result).resolve().parent for result in [shutil.which("initdb")] if result]
    return next((folder for folder in [*installed, *on_path] if (folder / "postgres").exists()), None)


class PostgresServer:
    """The server. `database()` creates a database. `kill`, `stop` and `start` are for tests of outages."""

    def __init__(self, bin_folder: Path) -> None:
        self.bin = bin_folder
        self.folder = Path(tempfile.mkdtemp(prefix="fp-pg-"))
        self.log = self.folder / "postgres.log"
        self.port = free_port()
        self._made = 0
        self._popen: subprocess.Popen[bytes] | None = None
        self._identity = _unprivileged()
        if self._identity:
            os.chown(self.folder, self._identity["user"], self._identity["group"])
        words = [str(self.bin / "initdb"), "-D", str(self.folder / "data"), "-U", "footplate", "--auth=trust"]
        words += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        process = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, **self._identity)
        if process.returncode != 0:
            raise AssertionError(f"initdb failed:\n{process.stdout}{process.stderr}")

    def url(self, database: str = "postgres") -> str:
        """Returns the URL that FOOTPLATE_DATABASE needs."""
        return f"postgresql+psycopg://footplate@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresServer:
        settings = [*FAST, f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}"]
        words = [str(self.bin / "postgres"), "-D", str(self.folder / "data")]
        with self.log.open("ab") as out:
            self._popen = subprocess.Popen(
                words + [word for setting in settings for word in ("-c", setting)],
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGQUIT),
                **self._identity,
            )
        until(self._answers, within=30, what="PostgreSQL answers", logs=[self.log], despite=(psycopg.OperationalError,))
        return self

    def stop(self) -> None:
        """Stops the server with a fast shutdown, which rolls back open transactions and drops connections."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Stops the server at once, like a crash, so that the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    @contextmanager
    def database(self, *, template: str = "template1", options: str = "") -> Iterator[str]:
        """Yields the URL of a new copy of `template`, and drops it at the end, even if clients are connected."""
        self._made += 1
        name = f"test_{self._made}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template} {options}")
        try:
            yield self.url(name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def own_folder(self, path: Path) -> Path:
        """Creates a folder that the server may write to."""
        path.mkdir()
        if self._identity:
            os.chown(path, self._identity["user"], self._identity["group"])
        return path

    def run(self, statement: str) -> None:
        """Runs a statement with autocommit in the maintenance database."""
        with psycopg.connect(self.url().replace("+psycopg", ""), autocommit=True) as line:
            line.execute(statement)  # type: ignore[call-overload]

    def close(self) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        assert self._popen is not None
        if self._popen.poll() is not None:
            raise AssertionError(f"PostgreSQL exited with {self._popen.returncode}:\n{self.log.read_text()}")
        self.run("SELECT 1")
        return True

    def _end(self, how: signal.Signals) -> None:
        if self._popen is not None:
            self._popen.send_signal(how)
            self._popen.wait(timeout=120)
            self._popen = None


def _unprivileged() -> dict[str, Any]:
    """Returns the user that runs the server if root runs the tests, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    names = {user.pw_name: user for user in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
