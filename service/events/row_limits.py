"""Limits the metrics, results and errors in a job's row, so that no response grows with the data that a job logs.

Events keep all data. The job's row is in the answer of every `GET /jobs/{id}`, and in each entry of a list.
"""

from __future__ import annotations

import json
from typing import Any

from footplate.contract.events import Failure, json_safe

MAX_NAMES, MAX_NAME_CHARS, MAX_TEXT_CHARS = 500, 200, 200
MAX_METRICS_BYTES = 32 * 1024
"""The limit for all latest metrics of a job as JSON, and for those of a checkpoint."""
MAX_RESULT_BYTES = 32 * 1024
MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS = 4000, 16_000
LEFT_OUT = (
    f"the job shows the latest value of metrics that are numbers, or text of up to {MAX_TEXT_CHARS} characters: "
    f"at most {MAX_NAMES} names of {MAX_NAME_CHARS} characters, and {MAX_METRICS_BYTES // 1024} KiB in all. "
    "Others are in its events only"
)


def latest(old_metrics: dict[str, Any], new_metrics: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Returns the metrics that a job's row keeps, and True if any were left out.

    New values replace those of `old_metrics`. If there are too many names, the names in `old_metrics` stay.
    """
    metrics: dict[str, Any] = {}
    size = 2
    for name, value in (old_metrics | new_metrics).items():
        cost = len(json.dumps({name: value})) if _fits(name, value) else MAX_METRICS_BYTES
        if len(metrics) < MAX_NAMES and size + cost <= MAX_METRICS_BYTES:
            metrics[name] = value
            size += cost
    return metrics, len(metrics) < len(old_metrics.keys() | new_metrics.keys())


def _fits(name: str, value: Any) -> bool:
    is_number = value is None or isinstance(value, int | float)
    return len(name) <= MAX_NAME_CHARS and (is_number or (isinstance(value, str) and len(value) <= MAX_TEXT_CHARS))


def result_of(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the first fields of an attempt's result, as many as a row keeps, with a remark if fields are left out."""
    fields: dict[str, Any] = {}
    size = 2
    for name, value in result.items():
        size += len(json.dumps({str(name)[:MAX_RESULT_BYTES]: json_safe(value)}))
        if size > MAX_RESULT_BYTES:
            fields["left_out"] = f"a result has {MAX_RESULT_BYTES // 1024} KiB; the rest is in the attempt's last event"
            break
        fields[name] = value
    return fields


def failure_of(error: Failure) -> Failure:
    """Cuts the texts of a failure to the lengths that a row keeps: a traceback to its end, others to their start."""
    return error.model_copy(
        update={
            "code": error.code[:100],
            "message": error.message[:MAX_MESSAGE_CHARS],
            "hint": error.hint and error.hint[:MAX_MESSAGE_CHARS],
            "traceback": error.traceback and error.traceback[-MAX_TRACEBACK_CHARS:],
        }
    )
