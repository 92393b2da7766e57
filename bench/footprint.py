"""What the service costs before it does anything: the time of its import, the memory of an idle process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from bench import report
from bench.post import serve
from tests.support.processes import Processes, clean_environment

IMPORT = "import sys, service.__main__; sys.exit('torch' in sys.modules)"


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    seconds = [_import() for _ in range(2 if quick else 5)]
    processes = Processes(folder)
    try:
        server, port = serve(processes, folder / "home", f"sqlite:///{folder / 'footprint.db'}")
        with urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 200
        resident = memory_mb(server.pid)
    finally:
        processes.stop_all()
    return [
        report.Row("service: import, without torch", seconds, "s", "≤ 2"),
        report.Row("service api: idle memory", [resident], "MB", "≤ 150"),
    ]


def _import() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORT], env=clean_environment(), check=True)
    return time.perf_counter() - started


def memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    report.main(run, quick="--quick" in sys.argv)
