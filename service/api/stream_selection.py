"""Reads which jobs and events a websocket for many jobs selects, from the parameters of its address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from footplate.contract.errors import Problem
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState
from service.api.history import read_kinds
from service.api.listing import milliseconds, read_states
from service.api.stream import read_number, seconds_between
from service.deps import job_id
from service.problems import InvalidQuery, comma_list
from service.store.job_list import NOT_OVER, JobFilter

PARAMETERS = ("jobs", "tag", "state", "since", "kinds", "max_hz")
MOST_NAMED = 150
"""This many jobs with their cursors fit into a websocket's address, which has at most 8 KiB."""


@dataclass(frozen=True, slots=True)
class StreamSelection:
    """The jobs and events that the address of a socket selects."""

    project: str
    named: Mapping[JobId, int]
    """The named jobs, with the cursor after which each begins."""
    filter: JobFilter | None
    """The filter for further jobs, or None if only the named jobs are followed."""
    since: int | None
    kinds: frozenset[Kind] | None
    seconds_between: float

    @classmethod
    def of(cls, query: Mapping[str, str], project: str) -> StreamSelection:
        tag, states, since = query.get("tag"), _states(query.get("state")), _moment(query.get("since"))
        if tag == "":
            raise InvalidQuery(
                [Problem("/query/tag", "invalid_parameter", "names no tag", "name a tag, or leave tag out")]
            )
        filter = JobFilter(project, states=states, tag=tag)
        is_open = "jobs" not in query or bool({"tag", "state", "since"} & set(query))
        return cls(
            project=project,
            named=_named(query.get("jobs")),
            filter=filter if is_open else None,
            since=since,
            kinds=read_kinds(query.get("kinds")),
            seconds_between=seconds_between(query.get("max_hz")),
        )


def _named(text: str | None) -> dict[JobId, int]:
    """Reads `job_a,job_b:17`, where the events of the second job begin after its event 17."""
    if text is None:
        return {}
    cursors: dict[JobId, int] = {}
    for item in comma_list(text, "jobs", MOST_NAMED):
        name, _, cursor = item.partition(":")
        job = job_id(name)
        if job in cursors:
            raise InvalidQuery([Problem("/query/jobs", "duplicate_job", f"{job} is listed twice", "list it once")])
        cursors[job] = read_number(cursor or None, "jobs", 0)
    return cursors


def _states(text: str | None) -> tuple[JobState, ...]:
    states = read_states(text)
    if final_states := [state.value for state in states if state not in NOT_OVER]:
        detail = f"{final_states[0]} is a final state, and this stream follows jobs until they reach one"
        hint = f"one or more of: {', '.join(NOT_OVER)}"
        raise InvalidQuery([Problem("/query/state", "state_is_an_end", detail, hint)])
    return tuple(states)


def _moment(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return milliseconds(moment.astimezone(UTC))
    except (ValueError, OverflowError):
        detail = f"{text[:40]!r} is not a time with a time zone, like 2026-01-01T12:00:00Z"
        raise InvalidQuery([Problem("/query/since", "invalid_parameter", detail)]) from None
