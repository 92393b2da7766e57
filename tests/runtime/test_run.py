"""The last lines of a training process, where a disk may have had enough."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from footplate.contract.host import outcome
from footplate.contract.host.artifacts import AttemptFiles
from footplate.runtime import run
from tests.support.factories import make_spec


def test_outputs_that_do_not_fit_are_said_with_where_and_what_would_work(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, "job_1", 1)  # type: ignore[arg-type]

    def save_model(folder: str) -> None:
        Path(folder).mkdir(parents=True)
        (Path(folder) / "config.json").write_text("{}")
        with Path("/dev/full").open("w") as full:
            full.write("weights")

    state = SimpleNamespace(global_step=8, best_metric=None)
    trainer: Any = SimpleNamespace(model=None, save_model=save_model, state=state)
    order: Any = SimpleNamespace(files=files, rank=0)
    emit: Any = SimpleNamespace(latest={"loss": 1.0}, had_checkpoint=True)

    with pytest.raises(OSError, match="outputs") as failed:
        run.finished(trainer, make_spec(), order, emit)

    verdict = outcome.of_exception(failed.value)
    assert (verdict.reason, verdict.error.code) == ("error", "cannot_save")
    assert str(files.outputs) in verdict.error.message
    assert "[Errno 28]" in verdict.error.message
    assert verdict.error.hint
    assert not files.outputs.exists(), "half of them takes the room that is missing"
