"""Tests that names below data:// and models:// are compared with the files of nodes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from footplate.contract.messages import BOOT_ID, FileRoot, FileRoots
from service.jobs.node_files import missing
from tests.support.factories import make_spec


def node(home: Path, **changes: Any) -> FileRoots:
    roots = {"data": FileRoot.at(home / "data"), "models": FileRoot.at(home / "models")}
    return FileRoots(**{"machine": BOOT_ID.read_text().strip(), **roots, **changes})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "data/sst2").mkdir(parents=True)
    (tmp_path / "data/sst2/train.jsonl").touch()
    return tmp_path


def lacking(*nodes: FileRoots | None, **changes: Any) -> list[tuple[str, str | None]]:
    spec = make_spec(**{"data": "data://sst2/trian.jsonl", **changes})
    return [(result.pointer, result.hint) for result in missing(spec.texts, nodes)]


def test_a_file_that_no_node_has_is_refused_with_the_nearest_name(home: Path) -> None:
    assert lacking(node(home)) == [("/data/train/args/paths/0", "did you mean 'train.jsonl'?")]


def test_a_missing_folder_is_refused_with_a_hint_to_create_it(home: Path) -> None:
    ((pointer, hint),) = lacking(
        node(home), data="data://sst2/train.jsonl", model={"use": "m", "args": {"path": "models://bert"}}
    )

    assert pointer == "/model/args/path"
    assert hint == f"put it below {home}/models"


@pytest.mark.parametrize("name", ["data://sst2/train.jsonl", "data://sst2/tr*.jsonl", "data://**/nothing.jsonl"])
def test_an_existing_file_and_a_pattern_that_may_match_are_accepted(home: Path, name: str) -> None:
    assert lacking(node(home), data={"use": "files/jsonl", "args": {"paths": [name]}}) == []


def test_a_pattern_that_matches_nothing_in_its_folder_is_refused(home: Path) -> None:
    assert len(lacking(node(home), data={"use": "files/jsonl", "args": {"paths": ["data://sst2/dev-*.jsonl"]}})) == 1


def test_a_file_that_only_a_single_node_has_is_accepted(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")

    assert lacking(node(other), node(home), data="data://sst2/train.jsonl") == []
    assert len(lacking(node(other), node(home))) == 1


@pytest.mark.parametrize("case", ["older node", "another machine", "another folder", "unmounted", "no node"])
def test_no_file_is_refused_if_the_service_cannot_see_the_folder_of_a_node(home: Path, case: str) -> None:
    root = FileRoot.at(home / "data")
    other = {
        "older node": [None],
        "another machine": [node(home, machine="another")],
        "another folder": [node(home, data=root.model_copy(update={"inode": root.inode + 1}))],
        "unmounted": [node(home, data=root.model_copy(update={"anchor": f"{home}/unmounted"}))],
        "no node": [],
    }[case]

    assert lacking(*other) == []
    assert lacking(*other, *([node(home)] if other else [])) == []
