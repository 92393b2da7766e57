"""Starts ranks as forks of a process that has imported torch, as torchrun would start them, and reads their results.

A start of Python with torch, transformers and the Trainer costs four seconds of CPU for each rank; a fork costs none.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.support.processes import Deadline, die_with_parent

SECONDS = 700
"""The time limit for all scenarios of one launch, on an idle machine."""
_ranks = multiprocessing.get_context("forkserver")
_ranks.set_forkserver_preload(["tests.trainer.distributed.preload"])


def launched(folder: Path, scenarios: list[dict[str, Any]], *, world: int = 2, **environment: str) -> None:
    """Runs the scenarios in `world` ranks. If a rank ends before the last scenario, the error contains the output."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scenarios.json").write_text(json.dumps(scenarios), encoding="utf-8")
    # As in torchrun, a store listens on the port already. Another process could take a port that is only free.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        **os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0", **environment,
    }  # fmt: skip
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    ranks = [_ranks.Process(target=_rank, args=(folder, common | names)) for names in own]
    for rank in ranks:
        rank.start()
    _end(ranks)
    for number, scenario in enumerate(scenarios):
        missing = None in read(folder, number, world)
        assert not missing, f"this scenario did not finish: {scenario}\n{(folder / 'output').read_text()[-6000:]}"


def _rank(folder: Path, environment: dict[str, str]) -> None:
    """Runs all scenarios as one rank, in a forked process."""
    from tests.trainer.distributed import job

    die_with_parent()()
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    job.main(json.loads((folder / "scenarios.json").read_text()), folder)


def _end(ranks: list[BaseProcess]) -> None:
    deadline = Deadline(SECONDS)
    for rank in ranks:
        while rank.is_alive() and not deadline.is_over():
            rank.join(1.0)
        rank.kill()
        rank.join()


def read(folder: Path, number: int, world: int) -> list[Any]:
    return [_result(folder, number, rank) for rank in range(world)]


def _result(folder: Path, number: int, rank: int) -> Any:
    path = folder / f"result-{number}-{rank}.json"
    return json.loads(path.read_text())["found"] if path.exists() else None
