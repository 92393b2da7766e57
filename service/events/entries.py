"""Parses entries of the event stream into events that can be stored, and collects entries that cannot be parsed.

An event that cannot be stored leaves a gap event under its own number. So its source has no missing number, and a
journal that waits for this number is not stuck forever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from pydantic_core import from_json, to_json

from footplate.contract.events import Kind, json_safe
from footplate.contract.ids import ClaimId, Fence, JobId, is_id

MAX_DATA_BYTES = 1024 * 1024
MAX_INTEGER = 2**63 - 1
MAX_SEQ = 2**31 - 1
MAX_DEPTH = 64
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""All errors that parsing JSON of any content may raise. An error that is missing here would stop ingest forever."""
INSPECTED = frozenset(
    {Kind.STATE, Kind.LOG, Kind.EVAL, Kind.CHECKPOINT, Kind.PROGRESS, Kind.SYSTEM, Kind.DO, Kind.NOTE, Kind.DONE}
)
"""The kinds of events whose data ingest reads. These events have their data as an object and as text."""

_KIND = re.compile(r"[a-z][a-z_]{0,31}")
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


@dataclass(frozen=True, slots=True)
class IncomingEvent:
    """One event in the form in which it is stored."""

    seq: int
    rank: int
    kind: str
    at: str
    step: int | None
    epoch: float | None
    text: str
    """The data as JSON."""
    data: dict[str, Any] | None
    """The data as an object, for kinds that ingest acts on."""


@dataclass(slots=True)
class Batch:
    """One entry of the stream: events of one source."""

    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    source: int
    events: list[IncomingEvent]
    first: int = 1
    """The oldest seq that the source's journal still has. All earlier events were acknowledged or are lost."""


@dataclass(slots=True)
class ParsedEntries:
    """The result of parsing entries of the stream."""

    batches: list[Batch] = field(default_factory=list)
    dead: list[tuple[str, str]] = field(default_factory=list)
    """(reason, text) of each entry or event that could not be parsed."""


def read_entries(payloads: Iterable[bytes | None], now_text: str) -> ParsedEntries:
    entries = ParsedEntries()
    for raw in payloads:
        try:
            entries.batches.append(_batch(raw, now_text, entries.dead))
        except UNREADABLE as error:
            entries.dead.append((f"not an event batch: {error}", (raw or b"").decode(errors="replace")))
    return entries


def _batch(raw: bytes | None, now_text: str, dead_entries: list[tuple[str, str]]) -> Batch:
    if raw is None:
        raise ValueError("the entry has no field 'batch'")
    document = _parse(raw)
    if not isinstance(document["job"], str) or not is_id(document["job"], "job"):
        raise ValueError(f"{document['job']!r} is not the id of a job")
    for name in ("attempt", "fence", "source"):
        if type(document[name]) is not int or not 0 <= document[name] <= MAX_INTEGER:
            raise ValueError(f"`{name}` must be an integer from 0 to {MAX_INTEGER}, and is {document[name]!r}")
    if not isinstance(document["claim"], str) or not isinstance(document["events"], list):
        raise ValueError("`claim` must be a string, and `events` a list")
    first_seq = document.get("first", 1)
    if type(first_seq) is not int or not 1 <= first_seq <= MAX_SEQ:
        raise ValueError(f"`first_seq` must be an integer from 1 to {MAX_SEQ}, and is {first_seq!r}")
    # JSON has no infinite numbers. A search for their names is cheaper than walking every value.
    has_wild_numbers = b"NaN" in raw or b"Infinity" in raw
    events = []
    for event in document["events"]:
        try:
            events.append(_incoming(event, has_wild_numbers))
        except UNREADABLE as error:
            seq = _seq(event)
            dead_entries.append((f"event {seq} of {document['job']}: {error}", repr(event)[:MAX_DATA_BYTES]))
            events.append(_gap(seq, str(error), now_text))
    return Batch(
        job=JobId(document["job"]),
        attempt=document["attempt"],
        fence=Fence(document["fence"]),
        claim=ClaimId(document["claim"]),
        source=document["source"],
        events=events,
        first=first_seq,
    )


def _parse(raw: bytes) -> Any:
    try:
        return from_json(raw)
    except ValueError:
        # This parser is slower. It accepts half a surrogate pair, so that a printed line with one is not lost.
        return json.loads(raw.decode(errors="replace"))


def _seq(event: Any) -> int:
    seq = event.get("seq") if isinstance(event, dict) else None
    if type(seq) is not int or not 1 <= seq <= MAX_SEQ:
        raise ValueError(f"`seq` of an event must be an integer from 1 to {MAX_SEQ}, and is {seq!r}")
    return seq


def _incoming(event: Any, has_wild_numbers: bool) -> IncomingEvent:
    seq, kind, at, data = _seq(event), event["kind"], event["at"], event.get("data")
    rank, step, epoch = event.get("rank", 0), event.get("step"), event.get("epoch")
    if type(kind) is not str or not _KIND.fullmatch(kind):
        raise ValueError(f"`kind` must be a short name in lower case, but it is {kind!r}")
    if type(at) is not str or not _AT.fullmatch(at):
        raise ValueError(f"`at` must be a time such as 2026-01-01T12:00:00Z, but it is {at!r}")
    if type(rank) is not int or not 0 <= rank < 2**31:
        raise ValueError(f"`rank` must be an integer from 0 to {2**31 - 1}, but it is {rank!r}")
    if step is not None and (type(step) is not int or not 0 <= step <= MAX_INTEGER):
        raise ValueError(f"`step` must be an integer from 0 to {MAX_INTEGER}, and is {step!r}")
    if epoch is not None:
        epoch = float(epoch)
        if not isfinite(epoch):
            raise ValueError(f"`epoch` must be a finite number, and is {epoch!r}")
    if data is None:
        data = {}
    if type(data) is not dict:
        raise ValueError("`data` must be an object")
    if _is_deeper_than(MAX_DEPTH, data):
        raise ValueError(f"`data` is nested more than {MAX_DEPTH} deep")
    text = _text(data, has_wild_numbers)
    if len(text) > MAX_DATA_BYTES:
        raise ValueError(f"`data` is {len(text)} bytes of JSON, more than {MAX_DATA_BYTES}")
    return IncomingEvent(seq, rank, kind, at, step, epoch, text, data if kind in INSPECTED else None)


def _text(data: dict[str, Any], has_wild_numbers: bool) -> str:
    if has_wild_numbers:
        return json.dumps(json_safe(data))
    try:
        return to_json(data).decode()
    except ValueError:
        return json.dumps(data)


def _is_deeper_than(limit: int, data: dict[str, Any]) -> bool:
    """Returns True if the data is nested more deeply than `limit`.

    This function does not recurse, because deep data would then exhaust the stack.
    """
    level: list[Any] = [data]
    for _ in range(limit):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def one_by_one(entries: ParsedEntries) -> Iterator[ParsedEntries]:
    """Yields each event of `entries` as entries of its own, to find the event that cannot be stored."""
    if entries.dead:
        yield ParsedEntries(dead=entries.dead)
    for batch in entries.batches:
        for event in batch.events:
            yield ParsedEntries([replace(batch, events=[event])])


def as_gap(entries: ParsedEntries, why: str, now_text: str) -> ParsedEntries:
    """Replaces an event that SQL cannot store by a gap event with the same seq, and adds the event to `dead`."""
    batch, event = entries.batches[0], entries.batches[0].events[0]
    gap = replace(batch, events=[_gap(event.seq, why, now_text)])
    return ParsedEntries([gap], [(f"{event.kind} {event.seq} of {batch.job}: {why}", event.text)])


def _gap(seq: int, why: str, now_text: str) -> IncomingEvent:
    text = f"event {seq} of this attempt could not be stored: {why[:500]}"
    data = {"message": text, "from": seq, "to": seq, "reason": why[:500]}
    return IncomingEvent(seq, 0, Kind.GAP, now_text, None, None, json.dumps(data), None)
