"""Resources are read leniently: a client may be older than the service that answers it."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import TypeAdapter, ValidationError

from footplate.contract.lifecycle import JobState
from footplate.contract.resources.history import MetricSummary
from footplate.contract.resources.jobs import BulkItem, ForkOf

ITEM = {"job": "job_1", "state": "queued", "error": None}
SEEN = {"no": 1, "step": 1, "epoch": None, "at": "2026-01-01T12:00:00.000Z", "attempt": 1}


def test_unknown_choices_and_fields_of_a_newer_service_are_accepted_by_a_client() -> None:
    assert BulkItem.model_validate({**ITEM, "state": "hibernating", "because": 1}).state == "hibernating"
    with pytest.raises(ValidationError):
        BulkItem.model_validate({**ITEM, "state": 1})


def test_the_schema_lists_the_choices_and_fields_of_this_version() -> None:
    schema = TypeAdapter(BulkItem).json_schema()

    assert schema["additionalProperties"] is False
    assert schema["properties"]["state"]["anyOf"][0] == {"$ref": "#/$defs/JobState"}
    assert schema["$defs"]["JobState"]["enum"] == list(JobState)


def test_nan_and_infinity_are_strings_in_json_and_floats_for_a_client() -> None:
    text = json.dumps({"name": "loss", "count": 1, "not_finite": 1, "last": {"value": "NaN", **SEEN}, "min": None,
                       "max": None})  # fmt: skip

    summary = MetricSummary.model_validate_json(text)

    assert math.isnan(summary.last.value)
    assert json.loads(summary.model_dump_json()) == json.loads(text)


def test_a_change_has_the_json_fields_from_and_to() -> None:
    fork = {"job": "job_1", "checkpoint": {"id": "ckpt_1", "step": 5}, "mode": "full", "exact": True,
            "changes": [{"pointer": "/priority", "from": 5, "to": 9}], "breaks_exactness": []}  # fmt: skip

    assert ForkOf.model_validate(fork).changes[0].new == 9
    assert json.loads(ForkOf.model_validate(fork).model_dump_json()) == fork
