"""TRL's trainers as jobs on two processes: each strategy trains, and a resumed run ends with the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import REPOSITORY

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(1800)]
PROGRAM = Path(__file__).with_name("on_two_processes.py")
EQUAL_TO_ONE_PROCESS = {
    "sft, whole", "dpo, whole", "reward, whole", "sft, adapter", "dpo, adapter", "reward, adapter",
}  # fmt: skip
"""The cases that give the losses of one process.

KTO's loss depends on the samples per process. Answers of GRPO and RLOO depend on each process's generators.
"""

Train = Callable[[str], dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    folder = tmp_path_factory.mktemp("processes")
    libraries = os.pathsep.join([str(Path(sys.prefix, "libraries")), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": libraries, "OMP_NUM_THREADS": "1"}
    two = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]

    def run(strategy: str) -> dict[str, dict[str, Any]]:
        how = [] if strategy == "single" else two
        command = [sys.executable, *how, PROGRAM, folder, strategy]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        results: dict[str, dict[str, Any]] = json.loads((folder / f"{strategy}.json").read_text())
        return results

    return run


@pytest.fixture(scope="module")
def alone(train: Train) -> dict[str, dict[str, Any]]:
    """Returns the results of the same jobs and batches in one process."""
    return train("single")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2", "zero3"])
def test_trl_trains_on_two_processes_and_resumes_equally(
    train: Train, alone: dict[str, dict[str, Any]], strategy: str
) -> None:
    together = train(strategy)

    assert {case: run["error"] for case, run in together.items() if "error" in run} == {}
    second_model = {"dpo, whole", "kto, whole"}
    assert together.keys() == alone.keys() - (set() if strategy == "ddp" else second_model)
    assert {case for case, run in together.items() if run["before"] == run["weights"]} == set(), "nothing was learned"
    assert {case for case, run in together.items() if run["weights"] != run["resumed weights"]} == set()
    for case in EQUAL_TO_ONE_PROCESS & together.keys():
        assert together[case]["losses"] == pytest.approx(alone[case]["losses"], rel=1e-3), case
