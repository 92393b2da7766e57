"""A job builds an operator in its first forward, and trains, as examples/custom-op shows."""

from __future__ import annotations

import pytest

from tests.examples.conftest import Examples


@pytest.mark.matrix
def test_a_model_with_a_custom_op_that_its_bundle_builds_trains(examples: Examples) -> None:
    spec = examples.with_code("custom-op/job.json")
    job = examples.system.submit(spec)
    outcome = examples.ended(job)

    assert outcome["state"] == "succeeded", outcome
    losses = examples.system.losses(job)
    assert losses[60] < 0.7 * losses[10]
    assert len(list(examples.system.folder.glob(f"**/extensions/{spec['code']['bundle']}/*torch*/*/*.so"))) == 1
