"""torchrun, and what its processes wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 220


def launched(folder: Path, scenarios: list[dict[str, Any]], *, world: int = 2, **environment: str) -> list[list[Any]]:
    """For each scenario, what each process found. What one of them printed is in the error where one ends badly."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = folder / "scenarios.json"
    asked.write_text(json.dumps(scenarios), encoding="utf-8")
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "-m"]
    done = subprocess.run(
        [sys.executable, *command, "tests.trainer.distributed.job", str(asked), str(folder)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    results = read(folder, len(scenarios), world)
    missing = [str(scenarios[number]) for number, each in enumerate(results) if None in each]
    assert not missing, f"not run to the end: {missing[0]}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return results


def read(folder: Path, scenarios: int, world: int) -> list[list[Any]]:
    return [[_result(folder, number, rank) for rank in range(world)] for number in range(scenarios)]


def _result(folder: Path, number: int, rank: int) -> Any:
    path = folder / f"result-{number}-{rank}.json"
    return json.loads(path.read_text())["found"] if path.exists() else None
