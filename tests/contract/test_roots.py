"""Tests uploaded files on a node, which are located by their ids and refused if they have changed."""

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


def test_the_id_of_a_dataset_is_replaced_by_its_path_anywhere_in_the_arguments(roots: Roots, tmp_path: Path) -> None:
    path = str(tmp_path / "files" / ID)

    assert resolved({"paths": [ID], "own": {"corpus": ID}, "text": f"{ID}!"}, roots) == {
        "paths": [path], "own": {"corpus": path}, "text": f"{ID}!",
    }  # fmt: skip


def test_a_dataset_that_was_changed_or_deleted_is_refused_by_its_id(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "files" / ID).write_bytes(b'{"x": 2}\n')
    with pytest.raises(DatasetError, match=f"{ID}.*sha256 differs"):
        resolved({"paths": [ID]}, roots)
    (tmp_path / "files" / ID).unlink()
    with pytest.raises(DatasetError, match=f"{ID}.*not in the artifact store"):
        resolved({"paths": [ID]}, roots)
