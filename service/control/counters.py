"""The numbers that control counts for Prometheus. docs/reference/metrics.md explains them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from footplate.contract.lifecycle import Reason

REMEMBERED_SECONDS = 60.0
BY = "by"


def _counter(meaning: str, advice: str = "") -> Any:
    return field(default=0, metadata={"meaning": meaning, "advice": advice})


def _gauge(meaning: str, advice: str = "") -> Any:
    return field(default=0, metadata={"meaning": meaning, "advice": advice, "is_gauge": True})


FAILURES = (
    Reason.ERROR, Reason.CRASHED, Reason.OOM, Reason.STALLED, Reason.NODE_LOST, Reason.POISON, Reason.TIME_LIMIT,
    Reason.NO_VALID_CHECKPOINT, Reason.DATASET_ERROR, Reason.JOURNAL_FULL, Reason.NOT_BUILDABLE,
)  # fmt: skip


def _none_yet() -> Counter[str]:
    """Each reason at 0: Prometheus sees no rise in a number whose first word is 1."""
    return Counter(dict.fromkeys(map(str, FAILURES), 0))


NOTHING = "Nothing: it says how busy control is."


@dataclass(slots=True)
class Counts:
    """Names are for ever: dashboards and alerts use them."""

    attempts_placed: int = _counter("Attempts that were given a node.", NOTHING)
    bells_rung: int = _counter(
        "Messages to nodes that an attempt waits for them.",
        "Much faster than placements: nodes do not claim. Look whether they consume (`GET /nodes`), and at Redis.",
    )
    claims_granted: int = _counter("Claims answered with yes.", NOTHING)
    claims_denied: int = _counter(
        "Claims answered with no: late, double, or of another version.",
        "A few come with every restart. A steady rise: the nodes' logs say why, in the denial.",
    )
    attempts_lost: int = _counter(
        "Attempts that ended without a word: silent for a lease, their node started again, their supervisor killed.",
        "The job's history says which. Many on one node: look at that machine (its kernel's log for the OOM killer).",
    )
    attempts_closed: int = _counter("Attempts that ended with a word.", NOTHING)
    retries: Counter[str] = field(
        default_factory=_none_yet,
        metadata={
            "meaning": "Jobs queued again after a lost or failed attempt.",
            "advice": "By its reason: `node_lost` and `stalled` point at machines, `crashed` and `oom` at jobs.",
            BY: "reason",
        },
    )
    jobs_failed: Counter[str] = field(
        default_factory=_none_yet,
        metadata={
            "meaning": "Jobs that failed, by the reason that they show.",
            "advice": "`error`, `oom`, `crashed` are their authors' to mend; many of another at once point at the "
            "machines, the data or the installation.",
            BY: "reason",
        },
    )
    beats: int = _counter("Heartbeats heard.", "It stands still: workers and control do not meet in one Redis.")
    events_stored: int = _counter("Events committed to SQL.", NOTHING)
    events_duplicate: int = _counter(
        "Events that came again and were dropped: journals re-send until acknowledged.",
        "It jumps when Redis or control restarts. A steady rise: acknowledgements are slow, look at `ingest_lag_ms`.",
    )
    events_ahead: int = _counter(
        "Events that came before their forerunners; their journal sends them again.", "As for duplicates."
    )
    events_dead: int = _counter(
        "Events and messages that could not be understood or stored, kept in `dead_events`.",
        "Any: read that table. Something writes to this Redis that should not, or a worker of another version does.",
    )
    events_late: int = _counter("Events of jobs that had ended: acknowledged and dropped.", "Some follow every kill.")
    gaps_declared: int = _counter(
        "Events that are lost and known to be: a node's disk lost part of a journal.",
        "Any: look at that disk. The job's history has a `gap` with the numbers.",
    )
    checkpoints_refused: int = _counter(
        "Checkpoints that were found corrupt, or that named files that are not theirs.",
        "Any: look at the artifact store's disk. The job went on from an older one.",
    )
    checkpoints_stuck: int = _gauge(
        "Folders of checkpoints that no job need keep, and that cannot be removed.",
        "Any: control's log says which and why, usually rights in the artifact store. It tries again by itself.",
    )
    stale_refused: int = _counter(
        "Beats and events of someone who no longer holds the attempt.",
        "A few per lost attempt: a worker that was only frozen came back, and was told to stop.",
    )
    journal_depth: int = _gauge(
        "Events in nodes' journals that SQL does not have, as of their last heartbeats.",
        "It grows: ingest does not keep up, or Redis or SQL is away. Nothing is lost below `FOOTPLATE_JOURNAL_MAX_MB`.",
    )
    journals_unreadable: int = _gauge(
        "Journals that lost everything that says whose they are, set aside on nodes as `journals/*.unreadable`.",
        "Any: look at that node's disk; its log names the file. After seven days it is dropped.",
    )
    ingest_lag_ms: int = _gauge(
        "How long the oldest event in Redis has waited for SQL; 0 when none waits.",
        "Above seconds: SQL is slow or away; users see their jobs late.",
    )
    webhooks_delivered: int = _counter("Deliveries to webhooks that were taken with 2xx.", NOTHING)
    webhooks_failed: int = _counter(
        "Tries to deliver to a webhook that failed; each is made again for a day.",
        "`GET /webhooks` says which of them fails, and since when; its deliveries say why.",
    )
    redis_outages: int = _counter(
        "Times that Redis stopped answering.",
        "Training goes on and events wait on nodes' disks; bring it back.",
    )
    database_outages: int = _counter(
        "Turns that the database did not serve.",
        "It rises while SQL is away: `/readyz` answers 503 then.",
    )

    def numbers(self) -> dict[str, int]:
        """Flat: a counter by label is one number for each, as Prometheus writes it."""
        found: dict[str, int] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if label := each.metadata.get(BY):
                found |= {f'{each.name}{{{label}="{name}"}}': count for name, count in sorted(value.items())}
            else:
                found[each.name] = value
        return found


class Depths:
    """A number of each, as it was last heard of: how much a journal held. Who falls silent is forgotten."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, float]] = {}

    def update(self, depths: Mapping[str, int]) -> None:
        clock = time.monotonic()
        self._found |= {whose: (depth, clock) for whose, depth in depths.items()}

    def total(self) -> int:
        horizon = time.monotonic() - REMEMBERED_SECONDS
        self._found = {whose: one for whose, one in self._found.items() if one[1] > horizon}
        return sum(depth for depth, _ in self._found.values())


GAUGES = frozenset(each.name for each in fields(Counts) if each.metadata.get("is_gauge"))


def prometheus_name(name: str) -> str:
    """Of a field, as it is scraped."""
    return f"footplate_control_{name}" + ("" if name in GAUGES else "_total")
