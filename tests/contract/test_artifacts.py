from __future__ import annotations

import os
from pathlib import Path

import pytest

from footplate.contract import layout
from footplate.contract.host.artifacts import AttemptFiles, store_trouble
from footplate.contract.ids import new_job_id
from footplate.trainer.checkpoint import STATE
from footplate.trainer.saving import _read_state
from footplate.trainer.state import TrainerState


def test_a_store_that_is_read_and_written_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / layout.PROBE).touch()

    assert store_trouble(tmp_path) is None


def test_a_folder_without_the_services_probe_is_another_store(tmp_path: Path) -> None:
    assert store_trouble(tmp_path / "typo") == (
        f"{tmp_path / 'typo'} is not the service's artifact store, or {layout.PROBE} would be there; is it mounted?"
    )


def test_a_store_that_cannot_be_read_is_said_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / layout.PROBE).mkdir()

    assert "cannot read the artifact store: Is a directory" in (store_trouble(tmp_path) or "")


def test_a_store_that_may_not_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / layout.PROBE).touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)

    assert "may not write to the artifact store" in (store_trouble(tmp_path) or "")


def test_the_best_checkpoint_is_found_by_the_path_that_another_node_knew_it_by(tmp_path: Path) -> None:
    job = new_job_id()
    files = AttemptFiles(tmp_path, job, 2)
    place = f"jobs/{job}/attempts/1/checkpoint-10"
    newest = tmp_path / f"jobs/{job}/attempts/1/checkpoint-20"
    for folder in (newest, tmp_path / place):
        folder.mkdir(parents=True)
    TrainerState(best_model_checkpoint=f"/node-1/work/{place}").save_to_json(newest / STATE)

    assert _read_state(newest, files.here)[0].best_model_checkpoint == str(tmp_path / place)
    assert _read_state(newest, str)[0].best_model_checkpoint is None, "it is gone, and forgotten"
    assert files.here("/node-1/elsewhere/checkpoint-10") == "/node-1/elsewhere/checkpoint-10"
