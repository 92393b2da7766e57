from __future__ import annotations

from pathlib import Path

from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.ids import new_job_id
from footplate.trainer.checkpoint import STATE
from footplate.trainer.resuming import _read_state
from footplate.trainer.state import TrainerState


def test_a_best_checkpoint_path_written_on_another_node_is_translated(tmp_path: Path) -> None:
    job = new_job_id()
    files = AttemptFiles(tmp_path, job, 2)
    place = f"jobs/{job}/attempts/1/checkpoint-10"
    newest = tmp_path / f"jobs/{job}/attempts/1/checkpoint-20"
    for folder in (newest, tmp_path / place):
        folder.mkdir(parents=True)
    TrainerState(best_model_checkpoint=f"/node-1/work/{place}").save_to_json(newest / STATE)

    assert _read_state(newest, files.here)[0].best_model_checkpoint == str(tmp_path / place)
    assert _read_state(newest, str)[0].best_model_checkpoint is None, "a missing folder must be dropped"
    assert files.here("/node-1/elsewhere/checkpoint-10") == "/node-1/elsewhere/checkpoint-10"
