"""Faults of models, data and maps are reported as early as they can be known, through the whole server."""

from __future__ import annotations

from typing import Any

from tests.examples.conftest import Examples

TRAIN = "data://sst2/train.jsonl"


def job(**changes: Any) -> dict[str, Any]:
    return {"model": "toy/mlp", "data": {"train": TRAIN}, "training": {"max_steps": 1}, **changes}


def mapped(use: str, **args: Any) -> dict[str, Any]:
    return job(data={"train": TRAIN, "map": [{"use": use, "args": args}]})


def test_what_only_the_node_can_know_ends_the_job_with_the_place_and_the_nearest(examples: Examples) -> None:
    examples.prepare("sentences")
    folder = examples.system.folder / "data/sst2"
    (folder / "empty.jsonl").write_text("\n")
    (folder / "out.jsonl").symlink_to("/etc/hostname")
    wanted = {
        "'sentense'": mapped("rename", columns={"sentense": "x"}),
        "empty.jsonl": job(data="data://sst2/empty.jsonl"),
        "data://sst2/out.jsonl": job(data="data://sst2/out.jsonl"),
    }
    jobs = {says: examples.system.submit(spec) for says, spec in wanted.items()}

    for says, submitted in jobs.items():
        ended = examples.ended(submitted)
        assert (ended["state"], ended["reason"], ended["attempt"]) == ("failed", "dataset_error", 1), ended
        assert says in ended["error"]["message"]
        assert ended["error"]["hint"]
