"""The spec of a serving session: the fields that it needs, and those that it would ignore."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.contract.errors import InvalidSpec
from footplate.contract.spec import JobSpec

SESSION: dict[str, Any] = {
    "model": "toy/mlp", "serve": {"idle": "2m"}, "resume_from": {"job": "job_" + "0" * 32, "mode": "weights"},
}  # fmt: skip


def test_a_session_needs_a_model_and_a_checkpoint_but_no_data() -> None:
    spec = JobSpec.parse(SESSION)

    assert spec.serve is not None
    assert (spec.serve.idle, JobSpec.parse(spec.as_json())) == (120.0, spec)


def test_the_json_of_a_spec_without_a_session_has_no_field_serve() -> None:
    assert "serve" not in JobSpec.parse({"model": "toy/mlp", "data": "toy/regression"}).as_json()


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"resume_from": None}, "/resume_from"),
        ({"model": None}, "/model"),
        ({"data": "toy/regression"}, "/data"),
        ({"callbacks": ["ema"]}, "/callbacks"),
        ({"resources": {"nodes": 2}}, "/resources/nodes"),
        ({"serve": {"idle": 0}}, "/serve/idle"),
        ({"serve": {"max_batches": 3}}, "/serve/max_batches"),
    ],
)
def test_a_session_is_refused_for_missing_fields_and_for_fields_it_would_ignore(
    change: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InvalidSpec) as invalid:
        JobSpec.parse({**SESSION, **change})

    assert [problem.pointer for problem in invalid.value.problems] == [pointer]
