"""A real Prometheus and promtool, for tests of the files in ops/."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.support.processes import Process, Processes, free_port

INSTALL = "apt-get install prometheus"
"""The command that installs what the skipped tests need."""


def program(name: str) -> str:
    if (result := shutil.which(name)) is None:
        pytest.skip(f"needs Prometheus: {INSTALL}")
    return result


def promtool(*words: str) -> str:
    """Runs promtool, which must succeed, and returns its output."""
    process = subprocess.run([program("promtool"), *words], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


class Prometheus:
    """A Prometheus with the given configuration, but with other intervals and targets."""

    def __init__(self, processes: Processes, config: Path, targets: Sequence[str]) -> None:
        report: dict[str, Any] = yaml.safe_load(config.read_text())
        report["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        report["rule_files"] = [str(config.parent / name) for name in report["rule_files"]]
        for job in report["scrape_configs"]:
            job["static_configs"] = [{"targets": list(targets)}]
        own, port = processes.folder / "prometheus.yml", free_port()
        own.write_text(yaml.safe_dump(report))
        self.process: Process = processes.start(
            program("prometheus"),
            f"--config.file={own}",
            f"--storage.tsdb.path={processes.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            name="prometheus",
        )
        self._client = httpx2.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=300)
        # Prometheus answers 503 to every query until it is ready.
        self.process.until(
            lambda: self._client.get(f"http://127.0.0.1:{port}/-/ready").is_success,
            within=60,
            what="Prometheus is ready",
        )

    def ask(self, path: str, **params: str) -> Any:
        answer = self._client.get(path, params=params)
        assert answer.status_code == 200, f"{params}: {answer.text}"
        return answer.json()["data"]

    def value(self, query: str) -> float | None:
        """Returns the value of a query that has one number, or None."""
        result = self.ask("/query", query=query)["result"]
        return float(result[0]["value"][1]) if len(result) == 1 else None
