"""Faults of models, data and maps are reported as early as they can be known, through the whole server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.examples.conftest import Examples

TRAIN = "data://sst2/train.jsonl"
NEEDS_BUNDLE = (
    "name a registered component, or add code.bundle: footplate submit SPEC --code DIR uploads the folder DIR "
    "and fills it in"
)
HUB_IS_OFF = "the operator allows it with FOOTPLATE_HUB=on, on service and nodes; data:// and models:// need nothing"


def job(**changes: Any) -> dict[str, Any]:
    return {"model": "toy/mlp", "data": {"train": TRAIN}, "training": {"max_steps": 1}, **changes}


def mapped(use: str, **args: Any) -> dict[str, Any]:
    return job(data={"train": TRAIN, "map": [{"use": use, "args": args}]})


@pytest.mark.parametrize(
    ("spec", "pointer", "code", "hint"),
    [
        (mapped("tokenise", column="x"), "/data/map/0/use", "unknown_component", "did you mean 'tokenize'?"),
        (mapped("tokenize", colum="x"), "/data/map/0/args/colum", "unknown_argument", "did you mean 'column'?"),
        (mapped("tokenize"), "/data/map/0/args/column", "missing", None),
        (job(model="hf/causal-llm"), "/model", "unknown_component", "did you mean 'hf/causal-lm'?"),
        (job(model={"use": "hf/causal-lm", "args": {"dtype": "fp8"}}), "/model/args/dtype", "unknown_choice", None),
        (job(model="os.system"), "/model", "not_well_formed", None),
        (job(model="builtins:eval"), "/model", "needs_bundle", NEEDS_BUNDLE),
        (job(collator="os:system"), "/collator", "needs_bundle", NEEDS_BUNDLE),
        (job(data="data://../x.jsonl"), "/data", "path_outside_root", None),
        (job(data="data://sst2/trian.jsonl"), "/data", "file_missing", "did you mean 'train.jsonl'?"),
        (job(data="hub://squad"), "/data", "hub_is_off", HUB_IS_OFF),
    ],
)
def test_what_can_be_known_at_post_is_told_there(
    examples: Examples, spec: dict[str, Any], pointer: str, code: str, hint: str | None
) -> None:
    examples.prepare("sentences")
    answer = examples.system.client.post("/jobs", json=spec)

    assert answer.status_code == 422, answer.text
    result = {(error["pointer"], error["code"]): error.get("hint") for error in answer.json()["errors"]}
    assert (pointer, code) in result, result
    assert hint is None or result[pointer, code] == hint


def test_what_only_the_node_can_know_ends_the_job_with_the_place_and_the_nearest(examples: Examples) -> None:
    examples.prepare("sentences")
    folder = examples.system.folder / "data/sst2"
    (folder / "empty.jsonl").write_text("\n")
    (folder / "out.jsonl").symlink_to("/etc/hostname")
    wanted = {
        "train.jsonl, line 1: there is no column 'sentense', only: sentence, label": mapped(
            "rename", columns={"sentense": "x"}
        ),
        "there is no row in empty.jsonl": job(data="data://sst2/empty.jsonl"),
        "leads out of data://": job(data="data://sst2/out.jsonl"),
    }
    jobs = {says: examples.system.submit(spec) for says, spec in wanted.items()}

    for says, submitted in jobs.items():
        ended = examples.ended(submitted)
        assert (ended["state"], ended["reason"], ended["attempt"]) == ("failed", "dataset_error", 1), ended
        assert says in ended["error"]["message"]
        assert ended["error"]["hint"]
