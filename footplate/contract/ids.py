"""Identifiers: a prefix for the kind of thing, and a UUIDv7, so that ids sort by their time of creation."""

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
    """Returns 48 bits of milliseconds and then random bits, as 32 hex digits (RFC 9562)."""
    stamp = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    tail = int.from_bytes(os.urandom(10))
    tail = (tail & ~(0xF << 76)) | (0x7 << 76)
    tail = (tail & ~(0x3 << 62)) | (0x2 << 62)
    return f"{stamp & (1 << 48) - 1:012x}{tail:020x}"


def _made(kind: Callable[[str], T], prefix: str) -> Callable[[], T]:
    """Returns a function that makes a new id of this kind."""
    return lambda: kind(f"{prefix}_{uuid7()}")


new_job_id = _made(JobId, "job")
new_node_id = _made(NodeId, "node")
new_claim_id = _made(ClaimId, "claim")
new_checkpoint_id = _made(CheckpointId, "ckpt")
new_key_id = _made(KeyId, "key")
new_webhook_id = _made(WebhookId, "hook")
new_delivery_id = _made(DeliveryId, "msg")
new_upload_id = _made(UploadId, "upload")
new_part_id = _made(PartId, "part")


def is_id(text: str, prefix: str) -> bool:
    """Returns True if the text has the shape of one of our ids. This is cheaper than a query."""
    return text.startswith(prefix + "_") and _ID.fullmatch(text) is not None


def is_file(text: str) -> bool:
    """Returns True if the text is the id of an uploaded file, which is made from the sha256 of its content."""
    return text.startswith("file_") and _FILE.fullmatch(text) is not None
