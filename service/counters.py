"""The numbers that control exports to Prometheus. docs/reference/metrics.md is generated from this file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from footplate.contract.lifecycle import Reason

REMEMBERED_SECONDS = 60.0
BY = "by"


def _counter(meaning: str, advice: str) -> Any:
    return field(default=0, metadata={"meaning": meaning, "advice": advice})


def _gauge(meaning: str, advice: str) -> Any:
    return field(default=0, metadata={"meaning": meaning, "advice": advice, "is_gauge": True})


FAILURES = (
    Reason.ERROR, Reason.CRASHED, Reason.OOM, Reason.STALLED, Reason.NODE_LOST, Reason.POISON, Reason.TIME_LIMIT,
    Reason.NO_VALID_CHECKPOINT, Reason.DATASET_ERROR, Reason.JOURNAL_FULL, Reason.NOT_BUILDABLE,
)  # fmt: skip


def _none_yet() -> Counter[str]:
    """Returns a counter with 0 for each reason of `FAILURES`.

    Prometheus sees no rise in a series that starts at 1, so each series must exist before its first failure.
    """
    return Counter(dict.fromkeys(map(str, FAILURES), 0))


NOTHING = "Nothing to do. The number shows how busy control is."


@dataclass(slots=True)
class Counts:
    """The counters and gauges of control, or the counters of one transaction, which are added after its commit.

    Dashboards and alerts use the names, so they never change.
    """

    attempts_placed: int = _counter("Attempts that were given a node.", NOTHING)
    start_messages_sent: int = _counter(
        "Start messages that were sent to nodes, each of which lets an attempt start.",
        "If it rises much faster than `attempts_placed`, nodes do not claim: check `GET /nodes`, and Redis.",
    )
    claims_granted: int = _counter("Claims that were granted.", NOTHING)
    claims_denied: int = _counter(
        "Claims that were denied because they were late, double, or from another version.",
        "A few come with every restart. If it rises steadily, the nodes' logs show the reason of each denial.",
    )
    attempts_lost: int = _counter(
        "Attempts that ended without a report: the lease ran out, the node restarted, or the supervisor was killed.",
        "The job's history says which. If many are on one node, look for the OOM killer in its kernel's log.",
    )
    attempts_closed: int = _counter("Attempts that ended with a report.", NOTHING)
    retries: Counter[str] = field(
        default_factory=_none_yet,
        metadata={
            "meaning": "Jobs queued again after a lost or failed attempt.",
            "advice": "Look at the reason: `node_lost` and `stalled` point at machines, `crashed` and `oom` at jobs.",
            BY: "reason",
        },
    )
    jobs_failed: Counter[str] = field(
        default_factory=_none_yet,
        metadata={
            "meaning": "Jobs that failed, by the reason that they show.",
            "advice": "The authors of the jobs fix `error`, `oom` and `crashed`. Many of another reason point at "
            "the machines, the data or the installation.",
            BY: "reason",
        },
    )
    beats: int = _counter("Heartbeats received.", "If it does not grow, workers and control do not use the same Redis.")
    events_stored: int = _counter("Events committed to SQL.", NOTHING)
    events_duplicate: int = _counter(
        "Events that came again and were dropped, because journals send again until they are acknowledged.",
        "It jumps when Redis or control restarts. A steady rise means slow acknowledgements: see `ingest_lag_ms`.",
    )
    events_ahead: int = _counter(
        "Events that were dropped because earlier events of their journal had not arrived. The node sends both again.",
        "It jumps when Redis or control restarts, as `events_duplicate` does.",
    )
    events_dead: int = _counter(
        "Events and messages that could not be parsed or stored, kept in `dead_events`.",
        "If it is not 0, read that table. A foreign program or a worker of another version writes to this Redis.",
    )
    events_late: int = _counter(
        "Events that arrived after the end of their job, and were dropped.", "Some arrive after every kill."
    )
    gaps_declared: int = _counter(
        "Ranges of events that are lost because a node's disk lost part of a journal.",
        "If it is not 0, check that disk. The job's history has a `gap` with the numbers.",
    )
    checkpoints_refused: int = _counter(
        "Checkpoints that were corrupt, or whose report named files of another job.",
        "If it is not 0, check the artifact store's disk. The job continued from an older checkpoint.",
    )
    checkpoints_stuck: int = _gauge(
        "Folders of checkpoints that no job needs, and that cannot be removed.",
        "If it is not 0, control's log names the reason, often missing rights in the artifact store. Control retries.",
    )
    stale_refused: int = _counter(
        "Heartbeats and events from a worker that does not hold the attempt any more.",
        "A few for each lost attempt are normal: a worker that was frozen continued, and was then stopped.",
    )
    journal_depth: int = _gauge(
        "Events in nodes' journals that SQL does not have, as of their last heartbeats.",
        "If it grows, ingest is too slow, or Redis or SQL is down. Nothing is lost below `FOOTPLATE_JOURNAL_MAX_MB`.",
    )
    journals_unreadable: int = _gauge(
        "Journals that do not say which attempt they belong to, set aside on nodes as `journals/*.unreadable`.",
        "If it is not 0, check that node's disk; its log names the file. The file is deleted after seven days.",
    )
    ingest_lag_ms: int = _gauge(
        "How long the oldest event in Redis has waited for SQL; 0 when none waits.",
        "Above a few seconds, SQL is slow or down, and users see their jobs late.",
    )
    webhooks_delivered: int = _counter("Deliveries to webhooks that were accepted with 2xx.", NOTHING)
    webhooks_failed: int = _counter(
        "Failed tries to deliver to a webhook. Each delivery is retried for a day.",
        "`GET /webhooks` shows which webhooks fail, and since when. Their deliveries show why.",
    )
    redis_outages: int = _counter(
        "Times that Redis stopped answering.",
        "Start Redis again. Training continues meanwhile, and its events wait on the nodes' disks.",
    )
    database_outages: int = _counter(
        "Runs of a duty that failed because the database did not answer.",
        "It rises while the database is down, and `/readyz` then answers 503.",
    )

    def add(self, other: Counts) -> None:
        for counter in fields(self):
            value, addend = getattr(self, counter.name), getattr(other, counter.name)
            if isinstance(value, Counter):
                value.update(addend)
            elif addend:
                setattr(self, counter.name, value + addend)

    def numbers(self) -> dict[str, int]:
        """Returns the value of every counter and gauge by its name.

        A counter with labels has one name for each label, in the form of Prometheus: `retries{reason="oom"}`.
        """
        numbers: dict[str, int] = {}
        for counter in fields(self):
            value = getattr(self, counter.name)
            if label := counter.metadata.get(BY):
                numbers |= {f'{counter.name}{{{label}="{name}"}}': count for name, count in sorted(value.items())}
            else:
                numbers[counter.name] = value
        return numbers


class Depths:
    """The numbers of events that wait on nodes, as last reported. Numbers older than a minute are dropped."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[int, float]] = {}

    def update(self, depths: Mapping[str, int]) -> None:
        clock = time.monotonic()
        self._reported |= {sender: (depth, clock) for sender, depth in depths.items()}

    def total(self) -> int:
        horizon = time.monotonic() - REMEMBERED_SECONDS
        self._reported = {sender: report for sender, report in self._reported.items() if report[1] > horizon}
        return sum(depth for depth, _ in self._reported.values())


GAUGES = frozenset(counter.name for counter in fields(Counts) if counter.metadata.get("is_gauge"))


def prometheus_name(name: str) -> str:
    """Returns the name under which Prometheus reads a field of `Counts`."""
    return f"footplate_control_{name}" + ("" if name in GAUGES else "_total")
