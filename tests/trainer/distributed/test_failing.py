"""A process that fails ends, whatever it was in the middle of, and the others end with its reason in their error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import at_ease
from tests.trainer.distributed.asked import STRATEGIES, ZERO

ENOUGH_SECONDS = 120
"""Seconds that the end may take, out of the 1,800 of a message. It takes about ten, and the start of torch."""


@pytest.mark.soak
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp 2", "zero 1", "zero 3"])
def test_one_that_fails_in_the_middle_of_a_message_ends_and_so_does_who_waits_for_it(
    tmp_path: Path, strategy: str, failing: int
) -> None:
    said = ended(tmp_path, failing=failing, other_computes=False, **{**STRATEGIES, **ZERO}[strategy])

    assert "Boom: in the middle of a message" in said[failing]
    assert f"process {failing} failed before this one, which is {1 - failing} of 2: Boom" in said[1 - failing]


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["ddp", "zero 1"])
def test_it_does_not_wait_for_one_that_computes_for_long(tmp_path: Path, strategy: str) -> None:
    said = ended(tmp_path, failing=1, other_computes=True, **{**STRATEGIES, **ZERO}[strategy])

    assert "Boom: in the middle of a message" in said[1]


def ended(folder: Path, **asked: Any) -> list[str]:
    """Returns the last output of each of two processes. Torchrun ends all as soon as one fails."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--redirects=3"]
    job = [f"--log-dir={folder / 'log'}", "-m", "tests.trainer.distributed.failing", str(folder), json.dumps(asked)]
    # DeepSpeed calls programs beside the interpreter.
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, *job]
    done = subprocess.run(
        command, env={**os.environ, **path}, capture_output=True, text=True, timeout=at_ease(ENOUGH_SECONDS)
    )
    said = [next((folder / "log").rglob(f"{rank}/stderr.log")).read_text() for rank in (0, 1)]
    assert done.returncode == 1, done.stderr[-4000:] + said[0][-4000:] + said[1][-4000:]
    return said
