"""Finds the job that a word means: an id, a unique name, the beginning or end of an id, or @last for the newest job."""

from __future__ import annotations

from footplate.contract.errors import did_you_mean
from footplate.contract.ids import is_id
from footplate.errors import invalid, not_found
from footplate.sdk.models import JobInfo
from footplate.sdk.request import ApiRequest, listed, send_for
from footplate.sdk.wire import Wire

NEWEST = "@last"
SHORTEST = 4
"""The smallest number of characters of an id that identifies a job."""
LONGEST = 128
"""The largest number of characters of a name."""
SEARCHED = 1000
"""The number of newest jobs that are searched for the beginning or end of an id."""


async def find(wire: Wire, word: str) -> JobInfo:
    """Returns a job. Raises NotFound, or InvalidRequest if the word could mean several jobs."""
    if is_id(word, "job"):
        return await send_for(JobInfo, wire, ApiRequest("GET", f"/jobs/{word}"))
    if word == NEWEST:
        async for job in listed(JobInfo, wire, "/jobs", 1):
            return job
        raise not_found("there is no job yet", "footplate submit creates one")
    jobs = [job async for job in listed(JobInfo, wire, "/jobs", 4, name=word)] if 0 < len(word) <= LONGEST else []
    jobs = jobs or await _matches_by_id(wire, word)
    if len(jobs) == 1:
        return jobs[0]
    listed_jobs = ", ".join(f"{job.id[-8:]} ({job.state}, submitted {job.created_at})" for job in jobs[:3])
    listed_jobs += ", …" if len(jobs) > 3 else ""
    detail = f"{word!r} could be {'several' if len(jobs) > 3 else len(jobs)} jobs: {listed_jobs}"
    hint = f"use these characters of its id, or {NEWEST} for the newest of all jobs"
    raise invalid("ambiguous", detail, hint)


async def _matches_by_id(wire: Wire, word: str) -> list[JobInfo]:
    newest = [job async for job in listed(JobInfo, wire, "/jobs", SEARCHED)]
    id_part = word.removeprefix("job_")
    matches = [job for job in newest if job.id.startswith(f"job_{id_part}") or job.id.endswith(id_part)]
    if matches and len(id_part) >= SHORTEST:
        return matches
    if suggestion := did_you_mean(word, {job.name for job in newest if job.name}):
        hint = suggestion
    elif len(newest) == SEARCHED:
        hint = f"`footplate ls` lists jobs; only the newest {SEARCHED:,} were searched"
    elif newest:
        hint = "`footplate ls` lists the jobs"
    else:
        hint = "there is no job yet: submit one"
    raise not_found(f"no job has the id or name {word[:LONGEST]!r}", hint)
