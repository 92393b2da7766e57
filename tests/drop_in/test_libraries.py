"""TRL, sentence-transformers and SetFit train to the same logs and weights on our Trainer as on transformers' own.

No library is patched. All cases of a side run in one process, because imports cost most of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("libraries.py")
CASES = (
    "sft", "sft lora", "sft packing", "dpo", "kto", "reward", "grpo", "rloo", "sentence-transformers", "cross-encoder",
    "setfit",
)  # fmt: skip
Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcomes, Outcomes]:
    folder = tmp_path_factory.mktemp("libraries")
    installed = Path(sys.prefix, "libraries")
    assert installed.is_dir(), "the libraries are not installed: run make .venv/.dev"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(PROGRAM.parents[2])])}
    subprocess.run([sys.executable, PROGRAM, folder], env=environment, check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "ours.json").read_text()), json.loads((folder / "theirs.json").read_text())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_a_library_trains_evaluates_and_resumes_as_under_transformers(
    case: str, outcomes: tuple[Outcomes, Outcomes]
) -> None:
    ours, theirs = (dict(side[case]) for side in outcomes)

    assert "error" not in theirs, theirs["error"]
    assert "error" not in ours, ours["error"]
    assert (ours.pop("base"), theirs.pop("base")) == ("footplate", "transformers")
    missing = set(theirs.pop("files", [])) - set(ours.pop("files", []))
    assert missing <= {"training_args.bin"}
    assert ours == theirs
