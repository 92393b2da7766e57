"""A store that is a bucket: what is whole there, what is not, and what is no answer at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract import layout
from contract.remote import RemoteStore
from tests.support.s3_server import S3Server


@pytest.fixture
def store(s3: S3Server, request: pytest.FixtureRequest) -> RemoteStore:
    """Of one test alone, with the service's mark."""
    made = RemoteStore(f"s3://shelf/{request.node.name.replace('[', '-').replace(']', '')}")
    made.write(b"ours", layout.PROBE)
    return made


def _folder(at: Path, **files: str) -> Path:
    at.mkdir(parents=True)
    for name, content in files.items():
        (at / name.replace("__", ".")).write_text(content)
    (at / layout.MANIFEST).write_text(json.dumps({"files": sorted(files)}))
    return at


def test_what_is_put_comes_back_whole_and_in_ranges(store: RemoteStore, tmp_path: Path) -> None:
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
    assert [(one.path, one.bytes) for one in store.files("jobs")] == [("a b/weights [1].pt", 25_600)]
    store.remove("jobs")
    assert store.files("jobs") == []
    assert store.open("jobs/a b/weights [1].pt") is None
