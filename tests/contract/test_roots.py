"""Uploaded files on a node: found by their ids, and used only as they were uploaded."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from footplate.contract.errors import DatasetError
from footplate.contract.host.file_roots import Roots, resolved

ROWS = b'{"x": 1}\n'
ID = f"file_{sha256(ROWS).hexdigest()}.jsonl"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    uploads = tmp_path / "files"
    uploads.mkdir()
    (uploads / ID).write_bytes(ROWS)
    return Roots(tmp_path / "data", tmp_path / "models", uploads)


def test_an_id_is_its_file_wherever_it_stands(roots: Roots, tmp_path: Path) -> None:
    path = str(tmp_path / "files" / ID)

    assert resolved({"paths": [ID], "own": {"corpus": ID}, "text": f"{ID}!"}, roots) == {
        "paths": [path], "own": {"corpus": path}, "text": f"{ID}!",
    }  # fmt: skip


def test_one_that_has_changed_or_gone_is_said_with_what_would_work(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "files" / ID).write_bytes(b'{"x": 2}\n')
    with pytest.raises(DatasetError, match=ID):
        resolved({"paths": [ID]}, roots)
    (tmp_path / "files" / ID).unlink()
    with pytest.raises(DatasetError, match=ID):
        resolved({"paths": [ID]}, roots)
