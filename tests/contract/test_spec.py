"""Tests which bodies JobSpec accepts, their long form, and that a round trip leaves a spec unchanged."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from footplate.contract.errors import InvalidSpec
from footplate.contract.json_schema import violations
from footplate.contract.lifecycle import Reason
from footplate.contract.machine import RetryOn
from footplate.contract.spec import JobSpec
from footplate.contract.spec_schema import job_schema
from tests.contract.specs import SPECS, TOY, VALUES, places

LONG = {
    "name": None, "project": "default", "tags": [], "metadata": {}, "priority": 5,
    "model": {"use": "toy/mlp", "args": {}}, "processor": None,
    "data": {"train": {"use": "toy/regression", "args": {}}, "eval": None, "split": None, "test": None, "map": []},
    "collator": None, "loss": None, "metrics": [], "compute_metrics": None, "training": {}, "optimizers": None,
    "callbacks": [], "trainer": None, "loop": None, "final_eval": None, "report_to": [], "code": None,
    "env": {}, "secrets": [],
    "resources": {
        "nodes": 1, "gpus_per_node": None, "gpu": None, "processes_per_node": None, "pool": "default",
        "strategy": {"type": "single"}, "time_limit": None, "stall_limit": 600.0,
    },
    "retry": {"max_attempts": 3, "on": ["node_lost", "crashed", "stalled"], "backoff": 0.0},
    "resume_from": None,
}  # fmt: skip


def points_into(value: Any, pointer: str) -> bool:
    """Returns True if all parts of the pointer exist in the body. The last part may be missing."""
    *path, _ = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for part in path:
        if not (part in value if isinstance(value, dict) else isinstance(value, list)):
            return False
        value = value[part] if isinstance(value, dict) else value[int(part)]
    return isinstance(value, dict | list)


def test_a_model_and_data_by_name_are_a_complete_spec():
    assert JobSpec.parse(TOY).as_json() == LONG


SCHEMA = job_schema()


@given(SPECS)
def test_a_valid_spec_fits_the_schema_and_its_json_parses_to_an_equal_spec(body):
    before = copy.deepcopy(body)
    spec = JobSpec.parse(body)
    again = JobSpec.parse(json.loads(json.dumps(spec.as_json())))
    assert again == spec
    assert again.as_json() == spec.as_json()
    assert violations(SCHEMA, body) == []
    assert body == before


@given(SPECS, st.data())
def test_any_value_in_any_field_is_accepted_or_refused_with_a_valid_pointer(body, data):
    body = copy.deepcopy(body)
    name = data.draw(st.sampled_from(sorted(JobSpec.model_fields)))
    body[name] = data.draw(VALUES)
    before = copy.deepcopy(body)
    try:
        JobSpec.parse(body)
    except InvalidSpec as invalid:
        pointers = [problem.pointer for problem in invalid.problems]
    else:
        pointers = None
    assert body == before
    assert pointers is None or (pointers and all(points_into(body, pointer) for pointer in pointers))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("4h", 14400), ("10m", 600), ("90s", 90), ("1h30m", 5400), ("2d", 172800), ("1.5h", 5400), (7, 7)],
)
def test_a_duration_is_parsed_into_seconds(text, seconds):
    assert JobSpec.parse({**TOY, "resources": {"time_limit": text}}).resources.time_limit == seconds


def test_an_integer_field_accepts_5e8_and_refuses_true_and_fractions():
    assert JobSpec.parse({**TOY, "training": {"max_steps": 5e8}}).training.max_steps == 500_000_000
    assert JobSpec.parse({**TOY, "priority": 1e1}).priority == 10
    # Neither a database nor a tensor can store this number.
    assert places({**TOY, "training": {"max_steps": 1e30}}) == [("/training/max_steps", "out_of_range")]
    assert places({**TOY, "priority": True}) == [("/priority", "wrong_type")]
    assert places({**TOY, "priority": 1.5}) == [("/priority", "wrong_type")]


def test_a_spec_with_evaluation_data_and_no_training_data_is_valid():
    assert JobSpec.parse({"model": "toy/mlp", "data": {"eval": "toy/regression"}}).data.train is None


def test_every_reason_to_retry_is_a_reason_of_the_lifecycle():
    assert {str(reason) for reason in RetryOn} <= {str(reason) for reason in Reason}


def test_a_parsed_spec_is_immutable():
    with pytest.raises(ValueError, match="frozen"):
        JobSpec.parse(TOY).name = "other"


def test_every_field_of_the_schema_has_a_description():
    schema = job_schema()
    for name, part in [("JobSpec", schema), *schema["$defs"].items()]:
        for field, described in part.get("properties", {}).items():
            assert described.get("description") or field == "type", f"{name}.{field} has no description"


def test_the_schema_omits_training_arguments_that_the_server_sets():
    training = job_schema()["$defs"]["TrainingArguments"]["properties"]
    assert "learning_rate" in training
    assert "output_dir" not in training
