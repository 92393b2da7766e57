"""Starts one system for all examples, because its start takes longer than most of them."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import REPOSITORY
from tests.support.system import JSON, System, standing_system

EXAMPLES = REPOSITORY / "examples"


def code_of(folder: Path) -> dict[str, bytes]:
    """Returns the files of an example's code."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    code = [path for path in paths if path.suffix not in (".md", ".json", ".pyc")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in code}


class Examples:
    """Submits the jobs of examples/ to one system. `prepare` runs an example's prepare.py once, if there is one."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._prepared: set[str] = set()

    def prepare(self, folder: str) -> None:
        script = EXAMPLES / folder / "prepare.py"
        if folder not in self._prepared and script.exists():
            runpy.run_path(str(script))["prepare"](self.system.folder)
        self._prepared.add(folder)

    def spec(self, name: str) -> JSON:
        self.prepare(name.partition("/")[0])
        content: dict[str, Any] = json.loads((EXAMPLES / name).read_text())
        return content

    def with_code(self, name: str, **changes: Any) -> JSON:
        """Uploads an example's code and returns its spec with these changes. `training` is changed field by field."""
        folder = EXAMPLES / name.partition("/")[0]
        spec: JSON = json.loads((EXAMPLES / name).read_text())
        training = {**spec.get("training", {}), **changes.pop("training", {})}
        code = {**spec["code"], "bundle": self.system.upload(code_of(folder))}
        return {**spec, "training": training, "code": code, **changes}

    def run(self, name: str, **changes: Any) -> JSON:
        """Submits an example, and returns its job after the job has ended."""
        return self.ended(self.submit(name, **changes))

    def submit(self, name: str, **changes: Any) -> str:
        return self.system.submit({**self.spec(name), **changes})

    def ended(self, job: str) -> JSON:
        return self.system.until_settled(job, within=200)

    def outputs(self, job: str) -> dict[str, bytes]:
        client = self.system.client
        paths = [entry["path"] for entry in self.system.get(f"/jobs/{job}/outputs")["data"]]
        return {Path(path).name: client.get(f"/jobs/{job}/outputs/{path}").content for path in paths}


def installed(package: Path, folder: Path) -> Path:
    """Installs a package into a folder of its own, without a package index, and returns that folder."""
    uv = Path(sys.executable).with_name("uv")
    install = [uv, "pip", "install", "--offline", "--python", sys.executable]
    if not uv.exists():
        install = [sys.executable, "-m", "pip", "install", "--no-index"]
    # A build writes files next to the sources, so it gets a copy of them.
    sources, lib = shutil.copytree(package, folder / "sources"), folder / "lib"
    subprocess.run([*install, "--quiet", "--no-deps", "--no-build-isolation", "--target", lib, sources], check=True)
    return lib


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    # The service and the node share these variables, so a secret of the node is here too.
    settings = {
        "FOOTPLATE_CODE": "on",
        "FOOTPLATE_ENV_ALLOWED": "EXAMPLE_*",
        "FOOTPLATE_SECRET_EXAMPLE_TOKEN": "hunter2-hunter2",
    }
    settings["PYTHONPATH"] = str(installed(EXAMPLES / "plugin", tmp_path_factory.mktemp("plugin")))
    with standing_system(tmp_path_factory.mktemp("examples"), **settings) as system:
        yield Examples(system)
