"""Finds the job that a word means: an id, a unique name, the beginning or end of an id, or @last for the newest job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from footplate.contract.errors import did_you_mean
from footplate.contract.ids import is_id
from footplate.errors import InvalidRequest, NotFound
from footplate.sdk.request import ApiRequest, paged, send_json
from footplate.sdk.wire import Wire

NEWEST = "@last"
SHORTEST = 4
"""The smallest number of characters of an id that identifies a job."""
SEARCHED = 1000
"""The number of newest jobs that are searched for the beginning or end of an id."""
PAGE = 200


async def find(wire: Wire, word: str) -> dict[str, Any]:
    """Returns the fields of a job. Raises NotFound, or InvalidRequest if the word could mean several jobs."""
    if is_id(word, "job"):
        answer: dict[str, Any] = await send_json(wire, ApiRequest("GET", f"/jobs/{word}"))
        return answer
    if word == NEWEST:
        return await _newest(wire)
    named = (
        await send_json(wire, ApiRequest("GET", "/jobs", params={"name": word, "limit": 4})) if word else {"data": []}
    )
    jobs = named["data"] or await _by_piece(wire, word)
    if len(jobs) == 1:
        return dict(jobs[0])
    some = ", ".join(f"{job['id'][-8:]} ({job['state']}, submitted {job['created_at']})" for job in jobs[:3])
    some += ", …" if len(jobs) > 3 else ""
    detail = f"{word!r} could be {'several' if len(jobs) > 3 else len(jobs)} jobs: {some}"
    hint = f"use these characters of its id, or {NEWEST} for the newest of all jobs"
    raise InvalidRequest(422, {"code": "ambiguous", "detail": detail, "hint": hint})


async def _newest(wire: Wire) -> dict[str, Any]:
    for job in (await send_json(wire, ApiRequest("GET", "/jobs", params={"limit": 1})))["data"]:
        return dict(job)
    raise NotFound(404, {"code": "not_found", "detail": "there is no job yet", "hint": "footplate submit creates one"})


async def _by_piece(wire: Wire, word: str) -> Sequence[dict[str, Any]]:
    newest: list[dict[str, Any]] = []
    async for job in paged(wire, "/jobs", limit=PAGE):
        newest.append(job)
        if len(newest) == SEARCHED:
            break
    piece = word.removeprefix("job_")
    meant = [job for job in newest if job["id"].startswith(f"job_{piece}") or job["id"].endswith(piece)]
    if meant and len(piece) >= SHORTEST:
        return meant
    raise _nothing_there(word, newest)


def _nothing_there(word: str, newest: Sequence[dict[str, Any]]) -> NotFound:
    if near := did_you_mean(word, {job["name"] for job in newest if job["name"]}):
        hint = near
    elif newest:
        hint = f"`footplate ls` lists the newest jobs; {len(newest)} were searched"
    else:
        hint = "there is no job yet: submit one"
    return NotFound(404, {"code": "not_found", "detail": f"no job has the id or name {word!r}", "hint": hint})
