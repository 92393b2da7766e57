"""A process that fails ends, whatever it was in the middle of: its launcher then ends the others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.distributed.asked import ZERO

ENOUGH_SECONDS = 170
"""Of the 1,800 that a message may take; it is a few, and the start of torch."""


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="ddp"),
        *(pytest.param(ZERO[each], id=each, marks=pytest.mark.soak) for each in ("zero 1", "zero 3")),
    ],
)
def test_one_that_fails_in_the_middle_of_a_message_ends_with_its_error(tmp_path: Path, values: dict[str, Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    waiting, failing = (started(rank, port, tmp_path, values) for rank in (0, 1))
    try:
        ended = failing.wait(ENOUGH_SECONDS)
    finally:
        for each in (waiting, failing):
            each.kill()
            each.wait()

    said = (tmp_path / "output-1").read_text()
    assert ended == 1, said[-4000:]
    assert "Boom: in the middle of a message" in said


def started(rank: int, port: int, folder: Path, values: dict[str, Any]) -> subprocess.Popen[bytes]:
    """As a launcher starts it."""
    job = [sys.executable, "-m", "tests.trainer.distributed.failing", str(folder), json.dumps(values)]
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    # DeepSpeed calls programs beside the interpreter.
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **path, **{name: str(value) for name, value in place.items()}}
    with (folder / f"output-{rank}").open("w") as output:
        return subprocess.Popen(job, stdout=output, stderr=output, env=environment)
