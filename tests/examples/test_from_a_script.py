"""The script and the spec of docs/tutorials/from-a-script.md are the same training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.conftest import Examples
from tests.support.processes import REPOSITORY

PAGE = REPOSITORY / "docs/tutorials/from-a-script.md"
TELL = "\nprint(json.dumps(trainer.state.log_history))"


def block(language: str) -> str:
    (match,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(match)


@pytest.mark.matrix
def test_a_script_and_the_job_that_it_becomes_have_equal_losses(examples: Examples, tmp_path: Path) -> None:
    system = examples.system
    examples.prepare("sentences")
    job = system.submit(json.loads(block("json")))

    history = ran(block("python"), tmp_path, home=system.folder)

    done = examples.ended(job)
    assert done["state"] == "succeeded", done
    assert system.losses(job) == {row["step"]: row["loss"] for row in history if "loss" in row}
    (evaluated,) = [row for row in history if "eval_loss" in row]
    assert done["metrics"]["eval_loss"] == evaluated["eval_loss"]
    assert done["metrics"]["eval_accuracy"] == evaluated["eval_accuracy"]
    assert (tmp_path / "out/model/config.json").is_file()


def ran(script: str, folder: Path, *, home: Path) -> list[dict[str, Any]]:
    """Runs the script beside the system's home, and returns its log."""
    (folder / ".footplate").symlink_to(home)
    done = subprocess.run(
        [sys.executable, "-c", script + TELL],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    content: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return content
