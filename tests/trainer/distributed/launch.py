"""torchrun, and what its processes wrote."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 700


def launched(folder: Path, scenarios: list[dict[str, Any]], *, world: int = 2, **environment: str) -> None:
    """Runs them; `read` tells what each process found. What was printed is in the error where one ends badly."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = folder / "scenarios.json"
    asked.write_text(json.dumps(scenarios), encoding="utf-8")
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with (folder / "output").open("w+") as output:
        job = [sys.executable, *command, "tests.trainer.distributed.job", str(asked), str(folder)]
        process = subprocess.Popen(job, stdout=output, stderr=output, env=environment)
        try:
            process.wait(SECONDS)
        finally:
            # It ends its processes where it is asked to end.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)
    for number, scenario in enumerate(scenarios):
        missing = None in read(folder, number, world)
        assert not missing, f"not run to the end: {scenario}\n{(folder / 'output').read_text()[-6000:]}"


def read(folder: Path, number: int, world: int) -> list[Any]:
    return [_result(folder, number, rank) for rank in range(world)]


def _result(folder: Path, number: int, rank: int) -> Any:
    path = folder / f"result-{number}-{rank}.json"
    return json.loads(path.read_text())["found"] if path.exists() else None
