"""Encodes and checks the lines of a journal: a CRC-32 in hex, a space, and an event as JSON."""

from __future__ import annotations

import json
import re
from typing import Any
from zlib import crc32

from footplate.contract.events import MAX_EVENT_BYTES, Kind, cut, json_safe, now_text

SEQ = re.compile(rb'\{"seq":(\d+),"kind":"(\w+)"')
"""Matches the beginning of every event, so that readers find its number and kind without parsing it."""


def seal(payload: bytes) -> bytes:
    return b"%08x %b\n" % (crc32(payload), payload)


def unseal(line: bytes) -> bytes | None:
    """Returns the event in a line, or None if the disk has changed the line."""
    payload = line[9:]
    return payload if payload and line[:8] == b"%08x" % crc32(payload) else None


def encode(seq: int, event: dict[str, Any]) -> bytes:
    """Returns an event as JSON that every database accepts, at most 64 KiB long, with `seq` and `kind` first."""
    try:
        return _encode(seq, event)
    except RecursionError:
        return _encode(seq, {**event, "data": {"truncated": True, "why": "nested too deep"}})


def _encode(seq: int, event: dict[str, Any]) -> bytes:
    body = {"seq": seq, "kind": str(event["kind"]), **{name: event[name] for name in _OTHER_FIELDS if name in event}}
    try:
        text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(json_safe(body), separators=(",", ":"))
    if "\\u0000" in text or "\\ud" in text:
        text = json.dumps(_without_traps(json.loads(text)), separators=(",", ":"))
    if len(text) > MAX_EVENT_BYTES:
        return _encode(seq, {**event, "data": cut(event.get("data"), len(text))})
    return text.encode()


_OTHER_FIELDS = ("rank", "at", "step", "epoch", "data")


def _without_traps(value: Any) -> Any:
    """Replaces NUL and lone surrogates, which JSON allows and databases refuse."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_without_traps(key): _without_traps(item) for key, item in value.items()}
    return [_without_traps(item) for item in value] if isinstance(value, list) else value


def gap(seq: int) -> bytes:
    """Returns a `gap` event with the number of a lost event."""
    text = f"event {seq} of this attempt is lost, because the node's journal does not have it any more"
    data = {"message": text, "from": seq, "to": seq}
    return encode(seq, {"kind": Kind.GAP, "at": now_text(), "data": data})
