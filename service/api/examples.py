"""Makes examples for the API's description from the schemas, so that a new schema has an example at once.

A schema's own example comes first, then an example by the field's name, then a value of the field's type.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

JOB = "job_019a9d0c5f7e7c6d8a53e0a1b2c3d4e5"
NODE = "node_019a9d0b11c27b0f9c3e5d6f7a8b9c0d"
REQUEST_ID = "req_019a9d0c-6a10-7b3c-8d4e-5f60718293a4"
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
KEY = "key_019a9d0d0a1b7c2d8e3f4a5b6c7d8e9f"
WEBHOOK = "hook_019a9d0e2b3c7d4e9f5a6b7c8d9e0f1a"
MOMENT = "2026-01-01T12:00:00.000Z"

OF_PARAMETERS: Json = {
    "job": JOB,
    "node": NODE,
    "key": KEY,
    "webhook": WEBHOOK,
    "sha256": SHA256,
    "path": "model.safetensors",
    "state": "queued,running",
    "tag": "demo",
    "name": "first steps",
    "kinds": "log,eval",
    "jobs": JOB,
    "names": "loss,eval_loss",
    "grep": "Traceback",
    "Idempotency-Key": "sst2-on-monday",
    "If-Match": '"3"',
}

BY_SCHEMA: dict[tuple[str, str], Any] = {
    ("Job", "id"): JOB,
    ("SpecWarning", "code"): "older_name",
    ("SpecWarning", "pointer"): "/training/warmup_ratio",
    ("SpecWarning", "detail"): "warmup_ratio is an older name. Stored instead: warmup_steps below 1",
    ("Job", "name"): "first steps",
    ("Job", "metrics"): {"loss": 0.0312, "learning_rate": 0.0004},
    ("Job", "message"): None,
    ("Job", "result"): None,
    ("Job", "error"): None,
    ("Job", "finished_at"): None,
    ("Job", "actions"): ["pause", "cancel"],
    ("Job", "reason"): "training",
    ("Job", "nodes"): ["node-1"],
    ("AttemptNode", "id"): NODE,
    ("Node", "id"): NODE,
    ("Node", "message"): None,
    ("Node", "refused"): None,
    ("Node", "versions"): {"footplate": "0.1.0", "torch": "2.13.0"},
    ("Node", "actions"): ["drain"],
    ("Attempt", "reason"): "node_lost",
    ("Attempt", "ending"): "lost",
    ("Attempt", "error"): None,
    ("Attempt", "result"): None,
    ("Checkpoint", "status"): "committed",
    ("Key", "name"): "the vision team",
    ("CreatedKey", "name"): "the vision team",
    ("CreatedKey", "key"): "fpk_3f9a1c77_" + "0" * 64,
    ("CreatedKey", "id"): KEY,
    ("Key", "id"): KEY,
    ("NewWebhook", "url"): "https://hooks.example.com/footplate",
    ("WebhookPatch", "url"): "https://hooks.example.com/footplate",
    ("Webhook", "url"): "https://hooks.example.com/footplate",
    ("CreatedWebhook", "url"): "https://hooks.example.com/footplate",
    ("NewWebhook", "states"): ["succeeded", "failed"],
    ("Delivery", "id"): "msg_019a9d0f3c4d7e5fa0617c8d9e0f1a2b",
    ("Delivery", "type"): "job.succeeded",
    ("Delivery", "status"): "delivered",
    ("Delivery", "next_try_at"): None,
    ("Delivery", "http_status"): 204,
    ("Delivery", "answer"): None,
    ("Delivery", "error"): None,
    ("Delivery", "body"): {
        "type": "job.succeeded",
        "timestamp": MOMENT,
        "data": {"job": JOB, "project": "default", "state": "succeeded", "reason": "completed", "attempt": 1, "no": 42},
    },
    ("SpecChange", "pointer"): "/training/learning_rate",
    ("SpecChange", "from"): 0.1,
    ("SpecChange", "to"): 0.05,
    ("Inexact", "pointer"): "/training/learning_rate",
    ("Inexact", "detail"): "another value from here on",
    ("ForkOf", "job"): JOB,
    ("ForkOf", "exact"): False,
    ("ForkPoint", "id"): "ckpt_019a9d0d1e2f7a3b8c4d5e6f70819203",
    ("Health", "status"): "degraded",
    ("Health", "degraded"): ["nodes"],
    ("Health", "details"): {"nodes": "no node takes work: start one with python -m worker"},
    ("MetricSummary", "name"): "loss",
    ("MetricSummary", "not_finite"): 0,
    ("SeenMetric", "value"): 0.0312,
    ("SeenMetric", "repeated"): False,
    ("Series", "name"): "loss",
    ("Series", "count"): 2,
    ("Series", "left_out"): 0,
    ("Series", "x"): [50, 100],
    ("Series", "y"): [0.25, 0.0312],
    ("SeriesAttempt", "first"): 0,
    ("Line", "stream"): "stderr",
    ("Line", "text"): "a line",
    ("QueuedJob", "name"): "first steps",
    ("QueuedJob", "place"): 2,
    ("QueuedJob", "needs"): "1 slot in pool 'default'",
    ("QueuedJob", "reason"): "capacity",
    ("QueuedJob", "message"): "waits for room: 1 slot in pool 'default'",
    ("QueuedJob", "starts_after"): None,
    ("Placement", "reason"): "placed",
    ("Placement", "message"): "would start now on node-1",
    ("Placement", "waits"): False,
    ("Validation", "spec"): {"model": {"use": "toy/mlp", "args": {}}, "project": "default"},
    ("Amendment", "name"): "first steps",
    ("NewKey", "name"): "the vision team",
    ("Resume", "resources"): {"pool": "large"},
    ("Resume", "num_train_epochs"): 5.0,
    ("Bundle", "unpacked_bytes"): 40_960,
    ("BundleFile", "path"): "my_code.py",
    ("Predict", "inputs"): [{"text": "a train at dawn"}],
    ("Predict", "checkpoint"): "latest",
    ("NewExport", "checkpoint"): "best",
    ("PredictionList", "session"): "job_019a9d0d2b7c7d8e9f0a1b2c3d4e5f60",
    ("PredictionList", "data"): [{"label": "calm", "score": 0.93, "scores": {"calm": 0.93, "wild": 0.07}}],
    ("Served", "id"): "ckpt_019a9d0d1e2f7a3b8c4d5e6f70819203",
}
_HOOK: Json = {
    "id": WEBHOOK,
    "url": "https://hooks.example.com/footplate",
    "states": ["succeeded", "failed"],
    "tags": None,
    "description": "the team's chat",
    "disabled_at": None,
    "disabled_why": None,
    "failing_since": None,
}
BY_SCHEMA |= {(shape, field): value for shape in ("Webhook", "CreatedWebhook") for field, value in _HOOK.items()}
BY_SCHEMA["CreatedWebhook", "secret"] = "whsec_" + "A" * 43 + "="
BY_SCHEMA |= {("ForkedJob", field): value for (shape, field), value in BY_SCHEMA.items() if shape == "Job"}
"""Examples of fields whose name means different things, by schema and field."""

BY_NAME: Json = {
    "job": JOB,
    "jobs": [JOB],
    "id": "checkpoint-100",
    "project": "default",
    "name": "node-1",
    "node": "node-1",
    "tags": ["demo"],
    "metadata": {"team": "vision"},
    "state": "running",
    "kind": "log",
    "at": MOMENT,
    "source": 0,
    "rank": 0,
    "gpus": [],
    "catalogue_hash": SHA256,
    "steps": 500,
    "parameters": 4_161,
    "expires_in_s": 30,
    "data": {"loss": 0.0312},
    "step": 100,
    "max_steps": 500,
    "epoch": 1.5,
    "eta_s": 41.5,
    "attempt": 1,
    "no": 42,
    "seq": 40,
    "last": 42,
    "last_no": 42,
    "version": 3,
    "priority": 5,
    "bytes": 10_240,
    "slots": 1,
    "pool": "default",
    "sha256": SHA256,
    "manifest_sha256": SHA256,
    "path": "model.safetensors",
    "metrics": {"eval_loss": 0.029},
    "prefix": "fpk_3f9a1c77",
    "scopes": ["read", "submit"],
    "created_by": None,
    "next_cursor": None,
    "pointer": "/training/learning_rat",
    "ticket": "0" * 64,
    "message": "a sentence",
    "time_limit": "4h",
    "expires_in": "90d",
}


TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
    "null": type(None),
}  # fmt: skip


def example_of(schema: Json, schemas: Json, name: str = "", inside: str = "") -> Any:
    """Returns an instructive value that the schema allows."""
    if "$ref" in schema:
        title = schema["$ref"].rpartition("/")[2]
        return example_of(schemas[title], schemas, name, title)
    if schema.get("examples"):
        return schema["examples"][0]
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return example_of(options[0], schemas, name, inside)
    if schema.get("type") == "object" or "properties" in schema:
        return _object(schema, schemas, inside or schema.get("title", ""))
    if schema.get("type") == "array":
        return [example_of(schema.get("items", {}), schemas, name, inside)]
    return _scalar(schema, name)


def _object(schema: Json, schemas: Json, title: str) -> Json:
    example = {}
    for name, field in schema.get("properties", {}).items():
        if (title, name) in BY_SCHEMA:
            example[name] = BY_SCHEMA[title, name]
        elif name in BY_NAME and _fits(BY_NAME[name], field, schemas):
            example[name] = BY_NAME[name]
        else:
            example[name] = example_of(field, schemas, name)
    return example


def _fits(value: Any, schema: Json, schemas: Json) -> bool:
    """Returns True if the schema may allow the value. The check only tells fields of one name apart."""
    if "$ref" in schema:
        return _fits(value, schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return any(_fits(value, option, schemas) for option in options)
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if "properties" in schema:
        return False
    if isinstance(value, list) and "items" in schema:
        return all(_fits(item, schema["items"], schemas) for item in value)
    return "type" not in schema or isinstance(value, TYPES[schema["type"]])


def _scalar(schema: Json, name: str) -> Any:
    if "default" in schema:
        return schema["default"]
    if name.endswith(("_at", "_until")):
        return MOMENT
    if schema.get("type") == "integer":
        return max(1, schema.get("minimum", 1))
    if schema.get("type") == "number":
        return max(1.0, schema.get("minimum", 1.0))
    if schema.get("type") == "boolean":
        return True
    return name or "text"
