"""A user's own model, dataset, collator and metric, through the whole server."""

from __future__ import annotations

import pytest

from tests.examples.conftest import Examples
from tests.support.system import assert_whole


def test_everything_of_ones_own_trains_and_is_measured(examples: Examples) -> None:
    standing = examples.system
    job = standing.submit(examples.with_code("point-clouds/job.json"))
    done = standing.until_settled(job)

    assert done["state"] == "succeeded", done
    evaluations = [event["data"] for event in standing.events(job) if event["kind"] == "eval"]
    assert [evaluation["eval_clouds"] for evaluation in evaluations] == [64, 64, 64]
    assert evaluations[-1]["eval_right"] > 0.9
    assert standing.final_weights(job)


@pytest.mark.matrix
def test_killed_in_the_middle_it_ends_as_if_nothing_had_been(examples: Examples) -> None:
    standing = examples.system
    training = {"save_strategy": "steps", "save_steps": 5, "logging_steps": 1, "gradient_accumulation_steps": 2,
                "dataloader_num_workers": 1, "num_train_epochs": 6}  # fmt: skip
    spec = examples.with_code("point-clouds/job.json", training=training)
    gate = standing.gate()
    quiet, job = standing.submit(spec), standing.submit(spec, callbacks=[*spec.get("callbacks", []), gate.at(12)])
    standing.until_checkpoint(job, 10)
    standing.until_reached(job, gate, 12)

    standing.kill_training(job)
    done = standing.until_settled(job)

    assert (done["state"], done["attempt"]) == ("succeeded", 2), done
    assert standing.until_settled(quiet)["state"] == "succeeded"
    assert standing.losses(job) == standing.losses(quiet)
    assert standing.final_weights(job) == standing.final_weights(quiet)
    assert_whole(standing.events(job))
