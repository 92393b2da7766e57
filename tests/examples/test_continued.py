"""A job continues a run of another Trainer, as examples/continue-from-transformers shows."""

from __future__ import annotations

import json

import pytest

from tests.examples.conftest import Examples


@pytest.mark.matrix
def test_a_checkpoint_of_transformers_continues_with_the_same_losses(examples: Examples) -> None:
    job = examples.run("continue-from-transformers/job.json")

    assert (job["state"], job["progress"]["step"]) == ("succeeded", 48), job
    theirs = json.loads((examples.system.folder / "models/their-run/checkpoint-48/trainer_state.json").read_text())
    after = {row["step"]: row["loss"] for row in theirs["log_history"] if row["step"] > 32 and "loss" in row}
    assert examples.system.losses(job["id"]) == {step: pytest.approx(loss, rel=1e-3) for step, loss in after.items()}
    notes = [event["data"]["message"] for event in examples.system.events(job["id"]) if event["kind"] == "note"]
    assert "continues from the checkpoint in models://their-run/checkpoint-32" in notes
