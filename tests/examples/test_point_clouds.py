"""Tests a user's own model, dataset, collator and metric through the whole server."""

from __future__ import annotations

from tests.examples.conftest import Examples


def test_a_model_dataset_and_metric_of_the_user_are_trained(examples: Examples) -> None:
    standing = examples.system
    job = standing.submit(examples.with_code("point-clouds/job.json"))
    outcome = standing.until_settled(job)

    assert outcome["state"] == "succeeded", outcome
    evaluations = [event["data"] for event in standing.events(job) if event["kind"] == "eval"]
    assert [evaluation["eval_clouds"] for evaluation in evaluations] == [64, 64, 64]
    assert evaluations[-1]["eval_right"] > 0.9
    assert standing.final_weights(job)
