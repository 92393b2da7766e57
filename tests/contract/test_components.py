"""Tests that components are listed without importing them, and checked against what nodes announce."""

import json
import sys

import pytest

from footplate.contract.components import Catalogue, Described, names
from footplate.contract.errors import InvalidSpec
from footplate.contract.spec import JobSpec
from tests.contract.specs import problems_of

MLP = {
    "type": "object",
    "additionalProperties": False,
    "required": ["hidden"],
    "properties": {
        "hidden": {"type": "integer", "minimum": 1},
        "dropout": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        "activation": {"enum": ["relu", "gelu"]},
        "bias": {"type": "boolean"},
        "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "sizes": {"type": "array", "items": {"type": "integer"}},
    },
}
CATALOGUE = Catalogue.of(
    [
        Described(name="toy/mlp", group="models", summary="A small perceptron.", args=MLP),
        Described(name="toy/gpt", group="models"),
        Described(name="toy/regression", group="data"),
        Described(name="accuracy", group="metrics"),
    ]
)


def pointers_and_codes(body, catalogue=CATALOGUE):
    return [(problem.pointer, problem.code) for problem in problems_of(body, catalogue)]


def model(**args):
    return {"model": {"use": "toy/mlp", "args": {"hidden": 4, **args}}, "data": "toy/regression"}


def test_built_in_components_are_listed_without_importing_them():
    modules_before = set(sys.modules)
    assert "toy/mlp" in names("models")
    assert "files/jsonl" in names("data")
    assert not any(name.startswith("worker.") for name in set(sys.modules) - modules_before)


def test_a_spec_of_known_components_has_no_problems():
    assert (
        pointers_and_codes({**model(dropout=0, sizes=[1, 2.0], seed=None, activation="relu"), "metrics": ["accuracy"]})
        == []
    )


def test_an_unknown_component_is_reported_with_the_nearest_and_all_known_names():
    (problem,) = problems_of({"model": {"use": "toy/mpl"}, "data": "toy/regression"}, CATALOGUE)
    assert (problem.pointer, problem.code) == ("/model/use", "unknown_component")
    assert all(name in problem.detail for name in ("'toy/mpl'", "toy/gpt, toy/mlp"))
    assert problem.hint == "did you mean 'toy/mlp'?"


def test_unknown_components_and_spec_errors_are_reported_together():
    body = {
        "model": {"use": "toy/mlp", "args": {"hiden": 3}}, "data": "toy/regresion", "metrics": ["f1", {"use": 3}],
        "callbacks": [{"use": "accuracy", "args": 7}], "foo": 1, "training": {"max_stepz": 3},
    }  # fmt: skip

    reports = {problem.pointer: problem for problem in problems_of(body, CATALOGUE)}

    assert set(reports) == {
        "/model/args/hidden", "/model/args/hiden", "/data", "/metrics/0", "/metrics/1/use", "/callbacks/0/args",
        "/foo", "/training/max_stepz",
    }  # fmt: skip
    assert reports["/data"].hint == "did you mean 'toy/regression'?"


def test_every_unknown_component_is_reported_at_its_place_in_the_body():
    data = {"train": "a", "eval": {"x": "b", "y": {"use": "c"}}}
    others = {"callbacks": ["early"], "collator": "padding", "processor": "tokens"}
    body = {"model": "bert", "data": data, "metrics": ["accuracy", "f2"], **others}
    assert sorted(pointers_and_codes(body)) == [
        ("/callbacks/0", "unknown_component"),
        ("/collator", "unknown_component"),
        ("/data/eval/x", "unknown_component"),
        ("/data/eval/y/use", "unknown_component"),
        ("/data/train", "unknown_component"),
        ("/metrics/1", "unknown_component"),
        ("/model", "unknown_component"),
        ("/processor", "unknown_component"),
    ]


def test_all_wrong_arguments_of_a_component_are_reported_at_once():
    body = model(hiden=3, dropout=1, activation="relo", bias=1, seed="5", sizes=[1, True], hidden=0)
    assert pointers_and_codes(body) == [
        ("/model/args/hidden", "out_of_range"),
        ("/model/args/hiden", "unknown_argument"),
        ("/model/args/dropout", "out_of_range"),
        ("/model/args/activation", "unknown_choice"),
        ("/model/args/bias", "wrong_type"),
        ("/model/args/seed", "wrong_type"),
        ("/model/args/sizes/1", "wrong_type"),
    ]


def test_a_component_without_arguments_refuses_any_argument():
    assert pointers_and_codes({"model": {"use": "toy/gpt", "args": {"x": 1}}, "data": "toy/regression"}) == [
        ("/model/args/x", "unknown_argument")
    ]


def test_a_catalogue_parsed_from_its_json_is_equal_and_has_the_same_hash():
    again = Catalogue.model_validate(json.loads(json.dumps(CATALOGUE.as_json())))
    assert again == CATALOGUE
    assert again.hash == CATALOGUE.hash


def test_the_hash_of_a_catalogue_depends_on_its_contents_and_not_their_order():
    first, second = Described(name="a", group="models"), Described(name="b", group="models")
    assert Catalogue.of([first, second]).hash == Catalogue.of([second, first]).hash
    assert Catalogue.of([first]).hash != Catalogue.of([first, second]).hash
    assert Catalogue.of([first]).hash != Catalogue.of([first.model_copy(update={"summary": "other"})]).hash


def test_a_catalogue_with_unknown_groups_and_fields_is_accepted():
    catalogue = Catalogue.model_validate({"loops": {"x": {"name": "x", "group": "loops", "since": 2}}})
    assert catalogue.known("loops") == ["x"]


def problem_of(body):
    (problem,) = problems_of(body, CATALOGUE)
    return problem


def test_a_missing_argument_is_named_with_an_example_of_the_component():
    problem = problem_of({"model": "toy/mlp", "data": "toy/regression"})

    assert (problem.pointer, problem.code) == ("/model", "missing")
    assert "'hidden'" in problem.detail
    assert '{"use": "toy/mlp", "args": {"hidden": 1}}' in problem.hint


def test_the_error_for_tokenize_without_a_column_describes_the_column():
    schema = {"type": "object", "required": ["column"]}
    schema["properties"] = {"column": {"type": "string", "description": "Column with the text"}}
    catalogue = Catalogue.of([Described(name="tokenize", group="maps", args=schema)])
    body = {"model": "my:Net", "data": {"train": "my:Rows", "map": ["tokenize"]}, "code": {"bundle": "0" * 64}}

    (problem,) = problems_of(body, catalogue)

    assert problem.pointer == "/data/map/0"
    assert "'column' (Column with the text)" in problem.detail
    assert '{"use": "tokenize", "args": {"column": "text"}}' in problem.hint


@pytest.mark.parametrize("name", ["hub://bert-base-uncased", "models://bert"])
def test_the_hint_for_a_path_used_as_a_model_name_moves_the_path_to_args(name):
    with pytest.raises(InvalidSpec) as error:
        JobSpec.parse({"model": name, "data": "toy/regression"})

    (problem,) = error.value.problems
    assert problem.pointer == "/model"
    assert f'"args": {{"path": "{name}"}}' in problem.hint


def test_the_hint_for_a_bare_pretrained_model_name_uses_it_as_a_hub_path():
    problem = problem_of({"model": "bert-base-uncased", "data": "toy/regression"})

    assert problem.code == "unknown_component"
    assert '"path": "hub://bert-base-uncased"' in problem.hint
