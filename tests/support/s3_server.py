"""A real process of moto's S3, which may also be unreachable and come back.

Unlike S3, the process loses all data when it is killed.

    with s3_server(folder) as s3:
        s3.environment(…)     the settings of service and nodes
        s3.go_away()          closes the port and keeps the data
        s3.come_back()
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.processes import Processes, free_port

BUCKET = "shelf"
AWAY, BACK = signal.SIGUSR1, signal.SIGUSR2


class S3Server:
    def __init__(self, processes: Processes, host: str = "127.0.0.1") -> None:
        self._processes, self.host, self.port = processes, host, free_port()
        self._said = processes.folder / "s3.said"
        self.start()

    def start(self) -> None:
        self._said.unlink(missing_ok=True)
        self._process = self._processes.start(
            "-m", "tests.support.s3_server", self.host, str(self.port), str(self._said), name="s3"
        )
        self._until("here")

    def environment(self, prefix: str) -> dict[str, str]:
        """Returns the settings of service and nodes for artifacts below this prefix."""
        return {
            "FOOTPLATE_ARTIFACTS": f"s3://{BUCKET}/{prefix}",
            "AWS_ENDPOINT_URL": f"http://{self.host}:{self.port}",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @contextmanager
    def variables_set(self) -> Iterator[None]:
        """Sets the bucket's environment variables in this process, too."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment("").items():
                if name.startswith("AWS_"):
                    patch.setenv(name, value)
            yield

    @contextmanager
    def away(self) -> Iterator[None]:
        self.go_away()
        try:
            yield
        finally:
            self.come_back()

    def go_away(self) -> None:
        self._process.signal(AWAY)
        self._until("away")

    def come_back(self) -> None:
        self._process.signal(BACK)
        self._until("here")

    def kill(self) -> None:
        self._process.signal(signal.SIGKILL)
        self._process.wait(10)

    def _until(self, what: str) -> None:
        self._process.until(lambda: self._said.read_text() == what, within=60, what=f"S3 is {what}")


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    processes = Processes(folder)
    try:
        yield S3Server(processes)
    finally:
        processes.stop_all()


def main(host: str, port: int, state_file: Path) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {AWAY, BACK})
    server = _listening(host, port)
    # moto imports most of its modules at the first request, which takes long on a busy machine.
    httpx2.put(f"http://{host}:{port}/{BUCKET}", timeout=60).raise_for_status()
    _say(state_file, "here")
    while True:
        if signal.sigwait({AWAY, BACK}) == AWAY:
            server.stop()
            _say(state_file, "away")
        else:
            server = _listening(host, port)
            _say(state_file, "here")


def _listening(host: str, port: int) -> Any:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(host, port, verbose=False)
    server.start()
    return server


def _say(state_file: Path, what: str) -> None:
    aside = state_file.with_suffix(".new")
    aside.write_text(what)
    os.replace(aside, state_file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
