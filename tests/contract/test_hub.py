"""Names of models and datasets on a hub are parsed, refused with a hint, and listed with their pointers."""

import pytest

from footplate.contract.files import on_hub
from footplate.contract.hub import HubName, base_model, hub_name
from footplate.contract.spec import JobSpec
from tests.contract.specs import TOY, places
from tests.support.factories import make_spec

COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("hub://bert-base-uncased", HubName("model", "bert-base-uncased")),
        ("hub://me/tiny", HubName("model", "me/tiny", "main")),
        ("hub://me/tiny.v2@v1.0", HubName("model", "me/tiny.v2", "v1.0")),
        ("hub://me/tiny@v1/checkpoints/last", HubName("model", "me/tiny", "v1", "checkpoints/last")),
        ("hub://datasets/squad", HubName("dataset", "squad")),
        ("hub://datasets/me/rows/data/*.parquet", HubName("dataset", "me/rows", "main", "data/*.parquet")),
        (f"hub://me/tiny@{COMMIT}", HubName("model", "me/tiny", COMMIT)),
    ],
)
def test_a_hub_name_is_parsed_into_kind_repository_and_revision(name, parts):
    assert hub_name(name) == parts
    assert hub_name(parts.place) == HubName(parts.kind, parts.repo, parts.revision)


def test_a_revision_that_is_a_commit_hash_needs_no_lookup():
    assert hub_name(f"hub://me/tiny@{COMMIT}").commit == COMMIT
    assert hub_name("hub://me/tiny@v1").commit is None


@pytest.mark.parametrize(
    "name",
    ["hub://", "hub:///etc", "hub://../x", "hub://a/../b", "hub://me/tiny/../../x", "hub://me/tiny@", "hub://a b/c",
     "hub://me/tiny@ref/../x/..", "hub://me/tiny//x", "hub://-a/b", "hub://me/a--b", "hub://user:key@host/x?y=z"],
)  # fmt: skip
def test_a_malformed_hub_name_is_reported_anywhere_in_the_spec(name):
    model = {"use": "hf/x", "args": {"peft": [{"base": name}]}}
    assert places({**TOY, "model": model}) == [("/model/args/peft/0/base", "bad_hub_name")]
    assert places({**TOY, "data": {"use": "hf/dataset", "args": {"path": name}}}) == [
        ("/data/args/path", "bad_hub_name")
    ]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("hub://me/rows", {"use": "hf/dataset", "args": {"path": "hub://datasets/me/rows"}}),
        ("hub://me/rows.v2", {"use": "hf/dataset", "args": {"path": "hub://datasets/me/rows.v2"}}),
        ("hub://me/rows/a.csv", {"use": "files/csv", "args": {"paths": ["hub://datasets/me/rows/a.csv"]}}),
        (
            {"use": "hf/dataset", "args": {"path": "hub://datasets/squad@v1"}},
            {"use": "hf/dataset", "args": {"path": "hub://datasets/squad@v1"}},
        ),
        (
            {"use": "a/b", "args": {"path": "hub://squad", "tokenizer": "hub://me/tiny"}},
            {"use": "a/b", "args": {"path": "hub://datasets/squad", "tokenizer": "hub://me/tiny"}},
        ),
    ],
)
def test_a_hub_name_in_the_data_field_means_a_dataset(short, long):
    spec = JobSpec.parse({**TOY, "data": short})
    assert spec.as_json()["data"]["train"] == long
    assert JobSpec.parse(spec.as_json()) == spec


def test_resuming_from_a_checkpoint_on_a_hub_is_refused():
    """A checkpoint has pickled files, which a hub might change. Its weights can be used as the path of a model."""
    assert places({**TOY, "resume_from": {"path": "hub://me/tiny/checkpoint-5"}})[0][0] == "/resume_from/path"


def test_every_hub_name_in_a_spec_is_listed_with_its_pointer():
    spec = make_spec(
        model={"use": "hf/causal-lm", "args": {"path": "hub://me/tiny"}},
        processor={"use": "hf/tokenizer", "args": {"path": "hub://me/other@v1"}},
        data={"train": "hub://me/rows", "eval": {"a": "hub://me/rows/a.csv"}},
    )

    assert dict(on_hub(spec.texts)) == {
        "/model/args/path": "hub://me/tiny",
        "/processor/args/path": "hub://me/other@v1",
        "/data/train/args/path": "hub://datasets/me/rows",
        "/data/eval/a/args/paths/0": "hub://datasets/me/rows/a.csv",
    }


@pytest.mark.parametrize(
    ("path", "repository"),
    [
        ("hub://owner/name@v1", "owner/name"),
        ("hub://owner/name/folder", None),
        ("models://tiny", None),
        (None, None),
    ],
)
def test_an_exported_model_names_its_base_if_that_is_a_repository(path, repository):
    assert base_model({"path": path}) == repository
