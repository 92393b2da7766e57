"""The ids of jobs, nodes and other objects: a prefix for the kind and a UUIDv7, so that ids sort by creation time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import NewType, TypeVar

T = TypeVar("T")
JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
ClaimId = NewType("ClaimId", str)
CheckpointId = NewType("CheckpointId", str)
KeyId = NewType("KeyId", str)
FileId = NewType("FileId", str)
UploadId = NewType("UploadId", str)
PartId = NewType("PartId", str)
WebhookId = NewType("WebhookId", str)
DeliveryId = NewType("DeliveryId", str)
Fence = NewType("Fence", int)

_ID = re.compile(r"[a-z]{2,6}_[0-9a-f]{32}")
_FILE = re.compile(r"file_[0-9a-f]{64}\.(jsonl|csv|tsv|parquet|txt)")


def uuid7(now_ms: int | None = None) -> str:
    """Returns a UUIDv7 (RFC 9562) as 32 hex digits: 48 bits of the time in milliseconds, then random bits."""
    stamp = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    tail = int.from_bytes(os.urandom(10))
    tail = (tail & ~(0xF << 76)) | (0x7 << 76)
    tail = (tail & ~(0x3 << 62)) | (0x2 << 62)
    return f"{stamp & (1 << 48) - 1:012x}{tail:020x}"


def _id_maker(kind: Callable[[str], T], prefix: str) -> Callable[[], T]:
    """Returns a function that makes new ids of the type `kind`, which begin with `prefix`."""
    return lambda: kind(f"{prefix}_{uuid7()}")


new_job_id = _id_maker(JobId, "job")
new_node_id = _id_maker(NodeId, "node")
new_claim_id = _id_maker(ClaimId, "claim")
new_checkpoint_id = _id_maker(CheckpointId, "ckpt")
new_key_id = _id_maker(KeyId, "key")
new_webhook_id = _id_maker(WebhookId, "hook")
new_delivery_id = _id_maker(DeliveryId, "msg")
new_upload_id = _id_maker(UploadId, "upload")
new_part_id = _id_maker(PartId, "part")


def is_id(text: str, prefix: str) -> bool:
    """Returns True if the text has the form of an id with this prefix, without a query for the object."""
    return text.startswith(prefix + "_") and _ID.fullmatch(text) is not None


def is_file(text: str) -> bool:
    """Returns True if the text is the id of an uploaded file, which is made from the sha256 of its content."""
    return text.startswith("file_") and _FILE.fullmatch(text) is not None
