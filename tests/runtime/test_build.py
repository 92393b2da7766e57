"""Tests that names in a spec become objects, and that only paths below the roots become files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from footplate.components import hf_models
from footplate.contract.components import Catalogue
from footplate.contract.errors import DatasetError, FootplateError, NotBuildable, UnknownComponent
from footplate.contract.host.bundle_files import Bundle
from footplate.contract.host.file_roots import Roots
from footplate.runtime import own_code
from footplate.runtime.build import build, load
from footplate.runtime.catalogue import describe
from tests.contract.specs import problems_of
from tests.support.factories import make_spec
from tests.support.own_code import close_bundle


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    for name in ("data", "models"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    (tmp_path / "secret.jsonl").write_text("{}\n")
    (tmp_path / "data" / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (tmp_path / "data" / "out").symlink_to(tmp_path)
    return Roots(tmp_path / "data", tmp_path / "models")


def jsonl(path: str) -> dict[str, Any]:
    return {"use": "files/jsonl", "args": {"paths": [path]}}


def test_a_spec_with_model_data_and_metrics_is_built(roots: Roots) -> None:
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
        ("/etc/passwd", "has no root such as data://"),
        ("data://nothing-*.jsonl", "matches no file"),
        ("data://l*.jsonl", "leads out of data://"),
        ("data://../*.jsonl", "leads out of data://"),
        ("data://out/*.jsonl", "leads out of data://"),
    ],
)
def test_a_path_that_is_missing_or_outside_its_root_is_refused(roots: Roots, path: str, says: str) -> None:
    from footplate.contract.spec_parts import Component

    spec = make_spec().model_copy(update={"data": make_spec().data.model_copy(
        update={"train": Component(use="files/jsonl", args={"paths": [path]})})})  # fmt: skip

    with pytest.raises(DatasetError, match=says):
        build(spec, roots)


def test_a_split_takes_the_same_rows_in_every_attempt_and_version(roots: Roots) -> None:
    rows = roots.data / "ten.jsonl"
    rows.write_text("".join(f'{{"x": {number}}}\n' for number in range(10)))

    def parts(**split: Any) -> tuple[list[int], list[int]]:
        job_parts = build(make_spec(data={"train": jsonl("data://ten.jsonl"), "split": split}), roots)
        return [row["x"] for row in job_parts.train], [row["x"] for row in job_parts.eval]

    assert parts(test_size=0.21, seed=7) == ([1, 2, 3, 4, 6, 7, 9], [0, 5, 8])
    assert parts(test_size=3, seed=7) == parts(test_size=0.3, seed=7)
    assert parts(test_size=3, seed=8) != parts(test_size=3, seed=7)
    with pytest.raises(DatasetError, match="10 of 10 rows"):
        parts(test_size=10)


def test_a_split_is_made_before_maps_and_its_errors_name_lines_of_the_file(roots: Roots) -> None:
    data = {
        "train": jsonl("data://a.jsonl"),
        "split": {"test_size": 1, "seed": 7},
        "map": [{"use": "keep", "args": {"columns": ["x"]}}],
    }
    (roots.data / "a.jsonl").write_text('{"x": 1, "y": 1}\n{"y": 2}\n')

    with pytest.raises(DatasetError, match=r"a.jsonl, line 2: .*'x'"):
        build(make_spec(data=data), roots)


def test_an_unknown_component_is_refused_with_the_nearest_name(roots: Roots) -> None:
    with pytest.raises(UnknownComponent, match="toy/mlp") as error:
        build(make_spec(model="toy/mpl"), roots)

    assert error.value.hint == "did you mean 'toy/mlp'?"


def test_a_glob_pattern_reads_all_matching_files_in_the_order_of_their_names(roots: Roots) -> None:
    for name in ("c-2", "c-1", "c-10"):
        (roots.data / f"{name}.jsonl").write_text(json.dumps({"name": name}))

    parts = build(make_spec(data=jsonl("data://c-*.jsonl")), roots)

    assert [parts.train[at]["name"] for at in range(3)] == ["c-1", "c-10", "c-2"]


def test_a_missing_file_is_refused_with_the_nearest_file_name(roots: Roots) -> None:
    with pytest.raises(DatasetError) as error:
        build(make_spec(data="data://aa.jsonl"), roots)

    assert error.value.hint == "did you mean 'a.jsonl'?"


def test_maps_are_applied_in_order_to_every_set(roots: Roots) -> None:
    maps = [{"use": "rename", "args": {"columns": {"x": "y"}}}, {"use": "rename", "args": {"columns": {"y": "z"}}}]

    parts = build(make_spec(data={"train": "data://a.jsonl", "eval": {"one": "data://a.jsonl"}, "map": maps}), roots)

    assert parts.train[0] == parts.eval["one"][0] == {"z": 1}


def test_a_map_without_a_tokenizer_is_refused_before_the_model_is_built(roots: Roots) -> None:
    maps = [{"use": "tokenize", "args": {"column": "x"}}]

    with pytest.raises(NotBuildable, match="tokenize needs a tokenizer"):
        build(
            make_spec(model={"use": "toy/gpt", "args": {"width": 3}}, data={"train": "data://a.jsonl", "map": maps}),
            roots,
        )


@pytest.mark.parametrize("name", ["os.system", "builtins:eval", "os:system", "../toy/mlp", "__import__", "a b"])
def test_a_component_name_that_is_not_registered_imports_no_module(name: str) -> None:
    before = set(sys.modules)

    for field in ({"model": name}, {"data": {"train": "toy/regression", "map": [name]}}, {"collator": name}):
        with pytest.raises(FootplateError):
            build(make_spec(**field), Roots(Path("/nowhere"), Path("/nowhere")))

    assert set(sys.modules) == before


def test_a_component_whose_library_is_missing_is_refused_with_the_pip_command(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("footplate.components.component.find_spec", lambda name: None)

    with pytest.raises(NotBuildable, match=r"hf/causal-lm.*pip install 'footplate\[hf\]'"):
        build(make_spec(model="hf/causal-lm"), roots)

    catalogue = Catalogue.of([describe("models", "hf/causal-lm", hf_models.causal_lm)])
    problem, *_ = problems_of({"model": "hf/causal-lm", "data": "toy/regression"}, catalogue)
    assert (problem.pointer, problem.code) == ("/model", "not_installed")
    assert "pip install 'footplate[hf]'" in problem.detail


@pytest.mark.parametrize(("field", "group", "name", "args"), [
    ("model", "models", "toy/mlp", {"hidden": -5}), ("model", "models", "toy/mlp", {"out_features": 0}),
    ("model", "models", "toy/mlp", {"dropout": 1.5}), ("loss", "losses", "cross_entropy", {"label_smoothing": 2.0}),
    ("loss", "losses", "focal", {"gamma": -1.0}), ("loss", "losses", "huber", {"delta": 0.0}),
    ("callbacks", "callbacks", "gradient_norms", {"depth": 0}), ("callbacks", "callbacks", "stop_on_nan", {"steps": 0}),
    ("callbacks", "callbacks", "ema", {"decay": 1.5}), ("callbacks", "callbacks", "ema", {"decay": 0.0}),
    ("callbacks", "callbacks", "ema", {"every": 0}),
])  # fmt: skip
def test_a_components_argument_out_of_range_is_refused_by_the_service(
    field: str, group: str, name: str, args: dict[str, float]
) -> None:
    components = [("models", "toy/mlp"), ("data", "toy/regression"), (group, name)]
    catalogue = Catalogue.of([describe(kind, use, load(kind, use)) for kind, use in components])
    component = {"use": name, "args": args}
    body = {"model": "toy/mlp", "data": "toy/regression", field: [component] if field == "callbacks" else component}

    problem, *_ = problems_of(body, catalogue)

    place = "callbacks/0" if field == "callbacks" else field
    assert problem.pointer == f"/{place}/args/{next(iter(args))}"
    assert problem.code == "out_of_range"


def test_the_users_own_trainer_gets_its_arguments_with_resolved_paths(roots: Roots) -> None:
    trainer = {"use": "my_code:Mine", "args": {"alpha": 0.5, "path": "data://a.jsonl"}}

    parts = build(make_spec(trainer=trainer, code={"bundle": "0" * 64}), roots)

    assert parts.make_trainer is None
    assert parts.trainer_args == {"alpha": 0.5, "path": str(roots.data / "a.jsonl")}


def test_a_missing_file_of_the_users_dataset_is_refused_before_the_model_is_loaded(
    roots: Roots, tmp_path: Path
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "my.py").write_text(
        "def load(): raise AssertionError('the model is loaded')\ndef rows(model, /, *, path): return []\n"
    )
    data = {"use": "my:rows", "args": {"path": "data://missing.jsonl"}}
    own_code.use(Bundle("0" * 64, folder, ("my.py",)))
    try:
        with pytest.raises(DatasetError, match="is not on this node"):
            build(make_spec(model="my:load", data=data, code={"bundle": "0" * 64}), roots)
    finally:
        close_bundle()
