"""Tests that the script and the spec of docs/tutorials/from-a-script.md train equally."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.conftest import Examples
from tests.support.pages import paste, snippets

PAGE = "tutorials/from-a-script.md"
TELL = "\nprint(json.dumps(trainer.state.log_history))"


@pytest.mark.matrix
def test_a_script_and_the_job_that_it_becomes_have_equal_losses(examples: Examples, tmp_path: Path) -> None:
    system = examples.system
    examples.prepare("sentences")
    (tmp_path / ".footplate").symlink_to(system.folder)
    (script,), (spec,) = snippets(PAGE, "python"), snippets(PAGE, "json")
    (tmp_path / "train.py").write_text(script + TELL)
    (tmp_path / "job.json").write_text(spec)
    _, run, submit = snippets(PAGE)

    output = paste([run, submit], tmp_path, system.url, OMP_NUM_THREADS="1").splitlines()

    (history,) = [json.loads(line) for line in output if line.startswith("[{")]
    (job,) = [line for line in output if line.startswith("job_")]
    assert system.job(job)["state"] == "succeeded"
    assert system.losses(job) == {row["step"]: row["loss"] for row in history if "loss" in row}
    *_, evaluated = [row for row in history if "eval_loss" in row]
    assert system.job(job)["metrics"]["eval_loss"] == evaluated["eval_loss"]
    assert system.job(job)["metrics"]["eval_accuracy"] == evaluated["eval_accuracy"]
    assert (tmp_path / "out/model/config.json").is_file()
