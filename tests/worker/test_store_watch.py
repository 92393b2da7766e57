from __future__ import annotations

import os
from pathlib import Path

import pytest

from footplate.contract import layout
from footplate.contract.ids import NodeId
from tests.support.processes import until
from worker.node.store_watch import StoreWatch, folder_trouble
from worker.settings import WorkerSettings


def test_a_store_that_is_read_and_written_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / layout.PROBE).touch()

    assert folder_trouble(tmp_path) is None


def test_a_folder_without_the_services_probe_is_another_store(tmp_path: Path) -> None:
    assert folder_trouble(tmp_path / "typo") == (
        f"{tmp_path / 'typo'} is not the service's artifact store, or {layout.PROBE} would be there; is it mounted?"
    )


def test_a_store_that_cannot_be_read_is_said_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / layout.PROBE).mkdir()

    assert "cannot read the artifact store: Is a directory" in (folder_trouble(tmp_path) or "")


def test_a_store_that_may_not_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / layout.PROBE).touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)

    assert "may not write to the artifact store" in (folder_trouble(tmp_path) or "")


def test_a_network_disk_that_hangs_is_reported_and_no_heartbeat_waits_for_it(tmp_path: Path) -> None:
    # Opening a pipe waits until another process opens its other end.
    os.mkfifo(tmp_path / layout.PROBE)
    watch = StoreWatch(WorkerSettings(artifacts=str(tmp_path)), NodeId("node_" + "1" * 32))

    watch.start()

    assert "has not had an answer" in (watch.trouble or "")
    os.close(os.open(tmp_path / layout.PROBE, os.O_WRONLY))
    until(lambda: watch.trouble is None, within=10, what="the store answers")
