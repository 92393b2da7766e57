"""Tests an artifact store in a bucket: reads, unreachable buckets, and interrupted commits."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore, StoreUnreachable
from footplate.contract.errors import SettingsError
from footplate.contract.settings import Settings
from service.settings import ServiceSettings
from tests.support.s3_server import S3Server
from worker.settings import WorkerSettings


@pytest.fixture
def store(s3: S3Server, request: pytest.FixtureRequest) -> RemoteStore:
    """Returns a store for one test, with the probe file by which nodes recognize the service's bucket."""
    remote_store = RemoteStore(f"s3://shelf/{request.node.name.replace('[', '-').replace(']', '')}")
    remote_store.write(b"ours", layout.PROBE)
    return remote_store


def test_an_uploaded_file_can_be_read_back_whole_and_in_ranges(store: RemoteStore, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(range(256)) * 100)
    store.put(file, "jobs/a b/weights [1].pt")
    assert store.read("jobs/a b/weights [1].pt") == file.read_bytes()
    opened = store.open("jobs/a b/weights [1].pt")
    assert opened is not None
    with opened:
        assert opened.bytes == 25_600
        opened.seek(300)
        assert opened.read(3) == bytes([44, 45, 46])
    assert [(item.path, item.bytes) for item in store.files("jobs")] == [("a b/weights [1].pt", 25_600)]
    store.remove("jobs")
    assert store.files("jobs") == []
    assert store.open("jobs/a b/weights [1].pt") is None


def test_a_folder_loses_its_manifests_first_and_then_several_files_at_once(
    store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"attempts/1/checkpoint-{step}/{name}" for step in (1, 2) for name in ("a", layout.MANIFEST)]
    for name in names:
        store.write(b"1", f"jobs/{name}")
    order, other_removal = list[str](), Barrier(2)
    remove_file = RemoteStore.remove_file

    def remove_beside_another(self: RemoteStore, path: str) -> None:
        order.append(Path(path).name)
        other_removal.wait(60)
        remove_file(self, path)

    monkeypatch.setattr(RemoteStore, "remove_file", remove_beside_another)
    store.remove("jobs")

    assert order == [layout.MANIFEST, layout.MANIFEST, "a", "a"]
    assert store.files("jobs") == []


def test_a_missing_or_foreign_bucket_raises_unreachable_and_not_file_not_found(store: RemoteStore) -> None:
    for other in (RemoteStore("s3://nobody/here"), RemoteStore("s3://shelf/not-ours")):
        assert f"{other} is not the service's artifact store" in (other.trouble() or "")
        with pytest.raises(StoreUnreachable):
            other.read("jobs/a")
        with pytest.raises(StoreUnreachable):
            other.open("jobs/a")
    with pytest.raises(StoreUnreachable, match="nobody"):
        RemoteStore("s3://nobody/here").write(b"", "jobs/a")
    assert store.trouble() is None
    with pytest.raises(FileNotFoundError):
        store.read("jobs/a")


def test_an_interrupted_commit_does_not_leave_the_old_manifest_over_new_files(
    store: RemoteStore, tmp_path: Path
) -> None:
    """If a process dies during a commit, the mixed files are read neither as the old version nor as the new one."""
    (tmp_path / "weights").write_text("new")
    (tmp_path / layout.MANIFEST).write_text("{}")
    store.write(b"old", "checkpoint-1/weights")
    store.write(b"[]", f"checkpoint-1/{layout.MANIFEST}")
    permissions = iter([True, False])

    assert store.commit(tmp_path, ["weights"], "checkpoint-1", lambda: next(permissions)) is False

    assert [file.path for file in store.files("checkpoint-1")] == ["weights"]
    assert store.commit(tmp_path, ["weights"], "checkpoint-1", lambda: True) is True
    assert store.read("checkpoint-1/weights") == b"new"


@pytest.mark.parametrize("settings", [ServiceSettings, WorkerSettings])
def test_the_artifact_root_is_a_folder_or_a_bucket_and_anything_else_is_refused(settings: type[Settings]) -> None:
    def settings_of(root: str) -> Any:
        return settings.from_environment({"FOOTPLATE_ARTIFACTS": root})

    assert settings_of("/a/b").artifacts_path == settings_of("file:///a/b").artifacts_path == Path("/a/b")
    assert settings_of("s3://shelf/runs/").artifacts == "s3://shelf/runs"
    for root in (
        "s3://",
        "s3://key:secret@shelf/a",
        "s3://shelf/../a",
        "s3://shelf/a?b=c",
        "gs://shelf",
        "file://else/a",
    ):
        with pytest.raises(SettingsError, match="FOOTPLATE_ARTIFACTS"):
            settings_of(root)
