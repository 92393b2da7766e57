"""Generates the example answers in openapi.json from their schemas, so that a new field has an example, too.

`EXAMPLES` has instructive values. A field without one gets a value of its type.
"""

from __future__ import annotations

from typing import Any

from footplate.contract.fields import Json
from footplate.contract.json_schema import violations

JOB = "job_019a9d0c5f7e7c6d8a53e0a1b2c3d4e5"
CHECKPOINT = "ckpt_019a9d0d1e2f7a3b8c4d5e6f70819203"
KEY = "key_019a9d0d0a1b7c2d8e3f4a5b6c7d8e9f"
NODE = "node_019a9d0b11c27b0f9c3e5d6f7a8b9c0d"
REQUEST_ID = "req_019a9d0c-6a10-7b3c-8d4e-5f60718293a4"
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
WEBHOOK = "hook_019a9d0e2b3c7d4e9f5a6b7c8d9e0f1a"
MOMENT = "2026-01-01T12:00:00.000Z"

_NULL = (
    "answer", "created_by", "disabled_at", "disabled_why", "error", "exposed", "failing_since", "finished_at",
    "message", "next_cursor", "next_try_at", "refused", "result", "starts_after",
)  # fmt: skip
"""The fields that are null in the examples, because they say what is rare or comes later."""

EXAMPLES: Json = {
    **dict.fromkeys(_NULL),
    # Examples for a field of one schema, by the title of the schema and the name of the field.
    "AttemptNode.id": NODE,
    "Attempt.reason": "node_lost",
    "BundleFile.path": "my_code.py",
    "Checkpoint.status": "committed",
    "CreatedKey.id": KEY,
    "CreatedKey.key": "fpk_3f9a1c77_" + "0" * 64,
    "CreatedKey.name": "the vision team",
    "CreatedWebhook.id": WEBHOOK,
    "Delivery.id": "msg_019a9d0f3c4d7e5fa0617c8d9e0f1a2b",
    "Delivery.status": "delivered",
    "ForkedJob.id": JOB,
    "ForkedJob.name": "first steps",
    "ForkPoint.id": CHECKPOINT,
    "Job.id": JOB,
    "Job.name": "first steps",
    "Key.id": KEY,
    "Key.name": "the vision team",
    "MetricSummary.name": "loss",
    "Node.actions": ["drain"],
    "Node.id": NODE,
    "Placement.reason": "placed",
    "PredictionList.data": [{"label": "calm", "score": 0.93, "scores": {"calm": 0.93, "wild": 0.07}}],
    "QueuedJob.name": "first steps",
    "QueuedJob.reason": "capacity",
    "Series.name": "loss",
    "Series.x": [50, 100],
    "Series.y": [0.25, 0.0312],
    "Served.id": CHECKPOINT,
    "SpecWarning.code": "older_name",
    "SpecWarning.detail": "warmup_ratio is an older name. Stored instead: warmup_steps below 1",
    "SpecWarning.pointer": "/training/warmup_ratio",
    "Webhook.id": WEBHOOK,
    "TypeCount.type": "string",
    "header.Idempotency-Key": "sst2-on-monday",
    "header.If-Match": '"3"',
    "path.node": NODE,
    "query.name": "first steps",
    "query.state": "queued,running",
    # Examples for fields and parameters of any schema that allows the value, by name.
    "actions": ["pause", "cancel"],
    "at": MOMENT,
    "body": {"type": "job.succeeded", "timestamp": MOMENT, "data": {"job": JOB, "state": "succeeded", "no": 42}},
    "bytes": 10_240,
    "catalogue_hash": SHA256,
    "data": {"loss": 0.0312},
    "degraded": ["nodes"],
    "details": {"nodes": "no node takes work: start one with python -m worker"},
    "ending": "lost",
    "expires_in_s": 30,
    "from": 0.1,
    "gpus": [],
    "grep": "Traceback",
    "http_status": 204,
    "id": "checkpoint-100",
    "job": JOB,
    "jobs": JOB,
    "key": KEY,
    "kind": "log",
    "kinds": "log,eval",
    "last": 42,
    "last_no": 42,
    "left_out": 0,
    "manifest_sha256": SHA256,
    "max_steps": 500,
    "metadata": {"team": "vision"},
    "metrics": {"loss": 0.0312},
    "name": "node-1",
    "names": "loss,eval_loss",
    "needs": "1 slot in pool 'default'",
    "no": 42,
    "not_finite": 0,
    "node": "node-1",
    "nodes": "node-1",
    "parameters": 4161,
    "path": "model.safetensors",
    "pointer": "/training/learning_rate",
    "pool": "default",
    "prefix": "fpk_3f9a1c77",
    "priority": 5,
    "project": "default",
    "reason": "training",
    "run": "nightly",
    "rank": 0,
    "scopes": ["read", "submit"],
    "secret": "whsec_" + "A" * 43 + "=",
    "sha256": SHA256,
    "spec": {"model": {"use": "toy/mlp", "args": {}}, "project": "default"},
    "state": "running",
    "states": ["succeeded", "failed"],
    "status": "degraded",
    "step": 100,
    "stream": "stderr",
    "tag": "demo",
    "tags": "demo",
    "ticket": "0" * 64,
    "to": 0.05,
    "type": "job.succeeded",
    "url": "https://hooks.example.com/footplate",
    "value": 0.0312,
    "version": 3,
    "versions": {"footplate": "0.1.0", "torch": "2.13.0"},
    "waits": False,
}


def example_of(schema: Json, schemas: Json, name: str = "", title: str = "") -> Any:
    """Returns an example that the schema allows.

    `name` is the name of the field that has this schema, and `title` the title of the object with that field.
    """
    for key in (f"{title}.{name}", name):
        if key in EXAMPLES and not violations({**schema, "$defs": schemas}, EXAMPLES[key]):
            return EXAMPLES[key]
    if "$ref" in schema:
        title = schema["$ref"].rpartition("/")[2]
        return example_of(schemas[title], schemas, title=title)
    for keyword in ("examples", "enum"):
        if schema.get(keyword):
            return schema[keyword][0]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return example_of(options[0], schemas, name, title)
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    if "properties" in schema:
        fields = schema["properties"].items()
        return {name: example_of(field, schemas, name, title or schema.get("title", "")) for name, field in fields}
    if schema.get("type") == "array":
        return [example_of(schema.get("items", {}), schemas, name, title)]
    if name.endswith(("_at", "_until")):
        return MOMENT
    by_type = {"integer": 1, "number": 1.0, "boolean": True, "object": {}}
    return by_type.get(schema.get("type", ""), name or "text")
