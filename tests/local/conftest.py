from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.processes import Process, Processes, until
from tests.support.system import LEISURE


@cache
def _client(url: str) -> httpx2.Client:
    return httpx2.Client(base_url=url, timeout=60, verify=False)


class Up:
    """Starts `footplate up` as a user does, in its own home."""

    def __init__(self, processes: Processes, home: Path) -> None:
        self.processes, self.home = processes, home
        self.ready: dict[str, Any] = {}

    def launch(self, *words: str, form: str = "--json", **environment: str) -> Process:
        """Starts the launcher without waiting until the system is ready. An empty `form` makes it print text."""
        env = {"FOOTPLATE_HOME": str(self.home), "FOOTPLATE_BEAT_SECONDS": "0.5", "FOOTPLATE_LEASE_SECONDS": "8"}
        words = ("-m", "footplate", "up", "--port", "0", *filter(None, [form]), *words)
        return self.processes.start(*words, name="up", env=env | environment)

    def start_with_text_output(self, *words: str, **environment: str) -> Process:
        """Starts the launcher, and waits until it prints the URL on a line of its own."""
        launcher = self.launch(*words, form="", **environment)
        url = re.compile(r"^http\S+$", re.MULTILINE)
        match = launcher.until(lambda: url.search(launcher.output), within=180, what="up prints its URL")
        self.ready = {"url": match[0]}
        return launcher

    def start(self, *words: str, **environment: str) -> Process:
        """Starts the launcher, and waits until the system is ready, because a node has announced its components."""
        launcher = self.launch(*words, **environment)
        launcher.until(lambda: '"url"' in launcher.output, within=180, what="up reports that it is ready")
        line = next(line for line in launcher.output.splitlines() if line.startswith("{"))
        self.ready = json.loads(line)
        return launcher

    @property
    def client(self) -> httpx2.Client:
        return _client(str(self.ready["url"]))

    def get(self, path: str) -> dict[str, Any]:
        return dict(self.client.get(path).raise_for_status().json())

    def submit(self, spec: dict[str, Any]) -> str:
        return str(self.client.post("/jobs", json=spec).raise_for_status().json()["id"])

    def until_nodes(self, count: int) -> None:
        def are_up() -> bool:
            names = {node["name"] for node in self.get("/nodes")["data"] if node["state"] == "up"}
            return names == {f"node-{number}" for number in range(1, count + 1)}

        self.processes.until(are_up, within=60, what=f"{count} nodes take work", every=LEISURE)

    def until_job(self, job: str, *states: str, within: float = 90) -> dict[str, Any]:
        self.processes.until(
            lambda: self.get(f"/jobs/{job}")["state"] in states,
            within=within,
            what=f"the job is {' or '.join(states)}",
            every=LEISURE,
        )
        return self.get(f"/jobs/{job}")

    def pid_of(self, launcher: Process, word: str) -> int:
        """Waits for a child of the launcher whose command line has this word, and returns its pid."""
        task = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")

        def look() -> int:
            for pid in task.read_text().split():
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
            return 0

        return until(look, within=20, what=f"the launcher has a child with {word!r}")


@pytest.fixture
def up(processes: Processes, tmp_path: Path) -> Up:
    return Up(processes, tmp_path / "home")
