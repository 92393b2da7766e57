"""Measures the idle cost of the service: the time of its import, and the memory of a process.

The time of an import depends mostly on the machine's present speed. So it is compared with the imports that any such
service needs.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from bench import report
from bench.post import serve
from tests.support.processes import Processes, clean_environment

OURS = "import sys, service.__main__; sys.exit('torch' in sys.modules)"
ANYONES = "import fastapi, sqlalchemy, pydantic"


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    imports = [[_import(statements) for statements in (OURS, ANYONES)] for _ in range(2 if quick else 5)]
    processes = Processes(folder)
    try:
        server, port = serve(processes, folder / "home", f"sqlite:///{folder / 'footprint.db'}")
        with urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 200
        resident = memory_mb(server.pid)
    finally:
        processes.stop_all()
    return [
        report.Row("service: import, without torch", [cost.wall_s for cost, _ in imports], "s", "≤ 2"),
        report.Row("… and its CPU time", [cost.cpu_s for cost, _ in imports], "s"),
        report.Row(
            "… relative to that of FastAPI, SQLAlchemy and pydantic", [a.cpu_s / b.cpu_s for a, b in imports], "×"
        ),
        report.Row("service api: idle memory", [resident], "MB", "≤ 150"),
    ]


@dataclass(frozen=True)
class ImportCost:
    wall_s: float
    cpu_s: float


def _import(statements: str) -> ImportCost:
    start, cpu_before = time.perf_counter(), _cpu_of_children()
    subprocess.run([sys.executable, "-c", statements], env=clean_environment(), check=True)
    return ImportCost(time.perf_counter() - start, _cpu_of_children() - cpu_before)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024
