"""JobSpec: what it takes, what it becomes, and that it comes back the same."""

import copy
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from footplate.contract.errors import InvalidSpec
from footplate.contract.json_schema import violations
from footplate.contract.lifecycle import Reason
from footplate.contract.machine import RetryOn
from footplate.contract.spec import JobSpec, job_schema
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
    """Everything but the last part is there; the last one may be what is missing."""
    *path, _ = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for part in path:
        if not (part in value if isinstance(value, dict) else isinstance(value, list)):
            return False
        value = value[part] if isinstance(value, dict) else value[int(part)]
    return isinstance(value, dict | list)


def test_two_words_are_a_whole_spec():
    assert JobSpec.parse(TOY).as_json() == LONG


SCHEMA = job_schema()


@given(SPECS)
def test_a_good_spec_fits_the_schema_and_its_effective_form_parses_back(body):
    before = copy.deepcopy(body)
    spec = JobSpec.parse(body)
    again = JobSpec.parse(json.loads(json.dumps(spec.as_json())))
    assert again == spec
    assert again.as_json() == spec.as_json()
    assert violations(SCHEMA, body) == []
    assert body == before


@given(SPECS, st.data())
def test_any_value_in_any_place_is_taken_or_refused_with_a_pointer_into_the_body(body, data):
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
    ("written", "seconds"),
    [("4h", 14400), ("10m", 600), ("90s", 90), ("1h30m", 5400), ("2d", 172800), ("1.5h", 5400), (7, 7)],
)
def test_a_duration_is_read_once_into_seconds(written, seconds):
    assert JobSpec.parse({**TOY, "resources": {"time_limit": written}}).resources.time_limit == seconds


def test_5e8_is_a_good_integer_and_true_is_none():
    assert JobSpec.parse({**TOY, "training": {"max_steps": 5e8}}).training.max_steps == 500_000_000
    assert JobSpec.parse({**TOY, "priority": 1e1}).priority == 10
    # What no database and no tensor takes.
    assert places({**TOY, "training": {"max_steps": 1e30}}) == [("/training/max_steps", "out_of_range")]
    assert places({**TOY, "priority": True}) == [("/priority", "wrong_type")]
    assert places({**TOY, "priority": 1.5}) == [("/priority", "wrong_type")]


def test_evaluation_alone_is_a_job():
    assert JobSpec.parse({"model": "toy/mlp", "data": {"eval": "toy/regression"}}).data.train is None


def test_what_may_be_retried_are_reasons_of_the_lifecycle():
    assert {str(reason) for reason in RetryOn} <= {str(reason) for reason in Reason}


def test_a_spec_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        JobSpec.parse(TOY).name = "other"


def test_every_field_of_the_schema_says_what_it_means():
    schema = job_schema()
    for name, part in [("JobSpec", schema), *schema["$defs"].items()]:
        for field, described in part.get("properties", {}).items():
            assert described.get("description") or field == "type", f"{name}.{field} has no description"


def test_the_schema_holds_the_training_arguments_without_the_servers_own():
    training = job_schema()["$defs"]["TrainingArguments"]["properties"]
    assert "learning_rate" in training
    assert "output_dir" not in training


def test_importing_the_spec_imports_nothing_heavy():
    program = "import sys, footplate.contract.spec, footplate.contract.components; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "sqlalchemy", "fastapi", "redis", "celery", "worker", "service"} & set(loaded)
