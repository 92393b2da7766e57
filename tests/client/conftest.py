"""Starts one real system for the tests of this folder. Its address stays the same after the service is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from footplate import Client
from tests.support.processes import Process, Processes, clean_environment, free_port
from tests.support.system import System, standing_system
from tests.support.template import folder_of_commands

PROGRAM = Path(sys.executable).parent / "footplate"
FAILING = {"model": {"use": "toy/mlp", "args": {"in_features": 3}}, "data": "toy/regression"}
"""The data has more features than the model takes."""


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Starts the service and one node with two slots. A test that kills the service starts it again."""
    settings = {"FOOTPLATE_PORT": str(free_port()), "FOOTPLATE_PING_SECONDS": "0.1"}
    with standing_system(tmp_path_factory.mktemp("client"), **settings) as system:
        yield system


@pytest.fixture
def client(standing: System) -> Iterator[Client]:
    with Client(standing.url) as result:
        yield result


@dataclass
class Command:
    """Runs the program as a user with FOOTPLATE_URL in the environment.

    `run` forks a process that has imported the program. `start` starts the installed program.
    """

    url: str
    folder: Path
    processes: Processes

    def run(self, *words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [folder_of_commands() / "footplate", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=self.folder,
            env=self.env | environment,
        )

    def good(self, *words: str, **more: str) -> str:
        """Runs a command that must succeed, and returns its output."""
        result = self.run(*words, **more)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def start(self, *words: str) -> Process:
        """Starts a command whose output goes to a file."""
        return self.processes.start(str(PROGRAM), *words, name="footplate", env=self.env, cwd=self.folder)

    @property
    def env(self) -> dict[str, str]:
        path = os.pathsep.join([str(folder_of_commands()), str(PROGRAM.parent), os.environ["PATH"]])
        return clean_environment() | {"FOOTPLATE_URL": self.url, "PATH": path}


@pytest.fixture
def command(standing: System, tmp_path: Path, processes: Processes) -> Command:
    return Command(standing.url, tmp_path, processes)
