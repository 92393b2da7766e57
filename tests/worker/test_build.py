"""Names become objects, and nothing but names under roots becomes a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.errors import DatasetError, UnknownComponent
from contract.testing import make_spec
from worker.build import build
from worker.roots import Roots


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    for name in ("data", "models"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    (tmp_path / "secret.jsonl").write_text("{}\n")
    (tmp_path / "data" / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    return Roots(tmp_path / "data", tmp_path / "models")


def jsonl(path: str) -> dict[str, Any]:
    return {"use": "files/jsonl", "args": {"paths": [path]}}


def test_a_whole_spec_is_built(roots: Roots) -> None:
    spec = make_spec(data={"train": jsonl("data://a.jsonl"), "eval": {"one": "toy/regression"}}, metrics=["mse"])

    parts = build(spec, roots)

    assert len(parts.train) == 2
    assert list(parts.eval) == ["one"]
    assert parts.metrics == ["mse"]
    assert parts.model is not None


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("data://missing.jsonl", "is not on this node"),
        ("data://../secret.jsonl", "leads out of data://"),
        ("data:///etc/passwd", "is not on this node"),
        ("data://link.jsonl", "leads out of data://"),
        ("models://a.jsonl", "is not on this node"),
        ("/etc/passwd", "names no root"),
    ],
)
def test_no_path_leads_anywhere_else(roots: Roots, path: str, says: str) -> None:
    from contract.parts import Component

    spec = make_spec().model_copy(update={"data": make_spec().data.model_copy(
        update={"train": Component(use="files/jsonl", args={"paths": [path]})})})  # fmt: skip

    with pytest.raises(DatasetError, match=says):
        build(spec, roots)


def test_an_unknown_name_is_answered_with_the_nearest(roots: Roots) -> None:
    with pytest.raises(UnknownComponent, match="toy/mlp") as raised:
        build(make_spec(model="toy/mpl"), roots)

    assert raised.value.hint == "did you mean 'toy/mlp'?"
