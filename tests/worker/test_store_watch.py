from __future__ import annotations

import os
from pathlib import Path

import pytest

from footplate.contract import layout
from footplate.contract.ids import NodeId
from tests.support.processes import until
from worker.node.heartbeat import StoreWatch, folder_trouble
from worker.settings import WorkerSettings


def test_a_readable_and_writable_store_is_reported_as_healthy(tmp_path: Path) -> None:
    (tmp_path / layout.PROBE).touch()

    assert folder_trouble(tmp_path) is None


def test_a_store_without_the_services_probe_file_is_reported_as_foreign(tmp_path: Path) -> None:
    assert folder_trouble(tmp_path / "typo") == (
        f"{tmp_path / 'typo'} is not the service's artifact store, "
        f"because it has no {layout.PROBE}: mount the store there"
    )


def test_an_unreadable_store_is_reported_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / layout.PROBE).mkdir()

    assert "cannot read the artifact store: Is a directory" in (folder_trouble(tmp_path) or "")


def test_an_unwritable_store_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / layout.PROBE).touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)

    assert "may not write to the artifact store" in (folder_trouble(tmp_path) or "")


def test_a_hanging_network_disk_is_reported_and_delays_no_heartbeat(tmp_path: Path) -> None:
    # Opening a pipe waits until another process opens its other end.
    os.mkfifo(tmp_path / layout.PROBE)
    watch = StoreWatch(WorkerSettings(artifacts=str(tmp_path)), NodeId("node_" + "1" * 32))

    watch.start()

    assert "has not had an answer" in (watch.trouble or "")
    os.close(os.open(tmp_path / layout.PROBE, os.O_WRONLY))
    until(lambda: watch.trouble is None, within=10, what="the store answers")


def test_a_store_that_the_service_makes_after_the_node_has_started_is_noticed_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreWatch, "EVERY_SECONDS", 600.0)
    watch = StoreWatch(WorkerSettings(artifacts=str(tmp_path)), NodeId("node_" + "1" * 32))
    watch.start()
    until(lambda: "mount the store there" in (watch.trouble or ""), within=10, what="the store is missing")

    (tmp_path / layout.PROBE).touch()

    until(lambda: watch.trouble is None, within=30, what="the store is available again")
