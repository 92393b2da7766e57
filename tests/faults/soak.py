"""Mixed load of many users, who submit, watch, look, pause, cancel and resume, and check every answer.

Every answer must be right, or a 503 with Retry-After. A killed service does not answer, and its clients try again.
`Findings` collects all faults that the clients find, for the checks of books.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.support.processes import at_ease, until_async
from tests.support.system import JSON, LONG_TOY, SETTLED, System

STUCK_SECONDS = 60.0
AT_ONCE = 8
"""The number of unfinished jobs at any time. Two nodes have only four slots, so some jobs always wait."""
RECENT = 10
"""The number of newest jobs from which readers choose."""
ANSWER_SECONDS, GONE_SECONDS = 30.0, 120.0
RETRY = {"max_attempts": 100, "on": ["node_lost", "crashed", "stalled", "oom"]}
"""A generous retry rule, because the question is whether every job ends right."""


def _mlp(steps: int, seed: int, **more: Any) -> JSON:
    training = {**LONG_TOY["training"], "max_steps": steps, "seed": seed, "save_steps": 5, **more}
    return {**LONG_TOY, "training": training, "retry": RETRY}


def _gpt(steps: int, seed: int) -> JSON:
    return {
        "model": {"use": "toy/gpt", "args": {"dropout": 0.1, "width": 32, "context": 32}},
        "data": {
            "train": {"use": "toy/text", "args": {"n": 128, "length": 32, "seconds_per_item": 0.005}},
            "eval": {"use": "toy/text", "args": {"n": 16, "length": 32, "seed": 1}},
        },
        "training": {
            "max_steps": steps, "per_device_train_batch_size": 4, "logging_steps": 1, "seed": seed,
            "eval_strategy": "steps", "eval_steps": 10, "save_strategy": "steps", "save_steps": 10,
        },
        "retry": RETRY,
    }  # fmt: skip


BRIEF: dict[str, JSON] = {
    "blink": _mlp(6, 1, dataloader_num_workers=0, gradient_accumulation_steps=1),
    "workers": _mlp(40, 2),
    "gpt": _gpt(60, 3),
}
LONG: dict[str, JSON] = {
    **BRIEF,
    "minute": {**_mlp(300, 4), "data": {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.012}}},
    "two minutes": {**_mlp(300, 5), "data": {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.024}}},
}
"""Kinds of jobs, which take seconds to minutes. The final weights do not depend on how often a job was killed."""

MOODS = ("run", "run", "run", "run", "pause", "pause", "cancel", "change of mind")
"""Actions that a user takes on a job. A `change of mind` is a cancel and then a resume."""


@dataclass
class Job:
    id: str
    kind: str
    mood: str
    key: str
    cancelled: bool = False
    """True if a cancel was acknowledged, and no resume after the cancel."""
    is_settled: bool = False


@dataclass
class Findings:
    """Faults that clients have seen."""

    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Answers with a status of 5xx, other than a 503 with Retry-After."""
    unanswered: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    torn_readers: list[str] = field(default_factory=list)
    checksums: dict[str, dict[int, int]] = field(default_factory=dict)
    """Checksums of all that a reader had seen, by job and by number of events."""
    answers: int = 0
    refusals: int = 0
    read_count: int = 0
    reconnects: int = 0
    resumed_after_poison: int = 0


class Load:
    """The clients of the service. They submit jobs until `last_call` is set, and stop once every job has ended."""

    def __init__(
        self, system: System, kinds: dict[str, JSON], seed: int, readers: int, service_is_down: Callable[[], bool]
    ) -> None:
        self.system, self.kinds, self.readers = system, kinds, readers
        self.random = random.Random(seed)
        self.jobs: list[Job] = []
        self.findings = Findings()
        self.last_call = threading.Event()
        """Set by the test when no more faults come, so that no more jobs are submitted."""
        self._service_is_down = service_is_down
        self._down_at = 0.0
        self._users: set[asyncio.Task[None]] = set()

    async def run(self, settle_within: float) -> None:
        async with httpx2.AsyncClient(base_url=self.system.url, timeout=ANSWER_SECONDS) as self.client:
            readers = [asyncio.create_task(self._read(random.Random(n))) for n in range(self.readers)]
            others = [asyncio.create_task(item) for item in (self._read_resources(), self._watch_for_the_stuck())]
            while not self.last_call.is_set():
                if sum(not job.is_settled for job in self.jobs) < AT_ONCE:
                    await self._submit()
                await asyncio.sleep(self.random.uniform(0.1, 0.6))
                for task in (*others, *readers):
                    if task.done():
                        task.result()
            await self._settle(settle_within)
            for task in others:
                task.cancel()
            self._no_more = True
            await self._end_of(readers)
            await asyncio.gather(*others, return_exceptions=True)

    _no_more = False

    # -- submitting ----------------------------------------------------------------------------------------------------

    async def _submit(self) -> None:
        # Most jobs are short. Otherwise long jobs would occupy every slot.
        kinds = list(self.kinds) + 3 * list(BRIEF)
        kind, mood = self.random.choice(kinds), self.random.choice(MOODS)
        key = f"soak-{len(self.jobs)}-{self.random.getrandbits(32)}"
        body = {**self.kinds[kind], "name": key}
        answer = await self._insist("POST", "/jobs", json=body, headers={"Idempotency-Key": key})
        if answer.status_code != 201:
            self.findings.wrong.append(f"POST /jobs: {answer.status_code} {answer.text[:300]}")
            return
        job = Job(answer.json()["id"], kind, mood, key)
        self.jobs.append(job)
        user = asyncio.create_task(self._act_for(job))
        self._users.add(user)
        if self.random.random() < 0.2:
            # A client that got no answer repeats its request, and must get the same job.
            again = await self._insist("POST", "/jobs", json=body, headers={"Idempotency-Key": key})
            if again.status_code != 201 or again.json()["id"] != job.id:
                self.findings.wrong.append(f"{key} sent again: {again.status_code} {again.text[:300]}")

    async def _act_for(self, job: Job) -> None:
        """Acts as the job's user until the job has ended for good."""
        if job.mood != "run":
            await asyncio.sleep(self.random.uniform(0.1, 8.0))
        if job.mood == "pause":
            await self._do(job, "pause")
        elif job.mood in ("cancel", "change of mind"):
            mode = self.random.choice(("checkpoint", "graceful", "kill"))
            job.cancelled = await self._do(job, "cancel", {"mode": mode})
        while True:
            state, reason = await self._until_settled(job)
            if state == "paused":
                await self._do(job, "resume")
            elif job.mood == "change of mind" and job.cancelled:
                job.cancelled = False
                if not await self._do(job, "resume"):
                    self.findings.wrong.append(f"{job.id} is {state} and cannot be resumed")
            elif state == "failed" and reason == "poison":
                # `poison` is right for a job that was killed three times before its first checkpoint. Users resume it.
                self.findings.resumed_after_poison += 1
                await self._do(job, "resume")
            else:
                job.is_settled = True
                return

    async def _do(self, job: Job, verb: str, body: JSON | None = None) -> bool:
        """Sends a verb, and returns True if it was accepted. A 409 is also right, because the job may have ended."""
        answer = await self._insist("POST", f"/jobs/{job.id}/{verb}", json=body)
        if answer.status_code not in (202, 409):
            self.findings.wrong.append(f"{verb} {job.id}: {answer.status_code} {answer.text[:300]}")
        return answer.status_code == 202

    async def _until_settled(self, job: Job) -> tuple[str, str]:
        while True:
            answer = await self._insist("GET", f"/jobs/{job.id}")
            if answer.status_code != 200:
                self.findings.wrong.append(f"GET {job.id}: {answer.status_code} {answer.text[:300]}")
            elif (now := answer.json())["state"] in SETTLED:
                return now["state"], now["reason"]
            await asyncio.sleep(0.5)

    async def _settle(self, within: float) -> None:
        with suppress(AssertionError):
            await until_async(
                lambda: all(user.done() for user in self._users), within=within, what="all users have ended"
            )
        for user in self._users:
            if user.done():
                user.result()
            else:
                user.cancel()
        self.findings.stuck += [
            f"{job.id} ({job.kind}, {job.mood}) has not ended" for job in self.jobs if not job.is_settled
        ]

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _insist(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """Repeats a request until it gets an answer other than a 503."""
        patience = time.monotonic() + GONE_SECONDS
        while (answer := await self._ask(method, path, **more)) is None:
            assert time.monotonic() < patience, f"{method} {path}: no answer for {GONE_SECONDS:g} s"
            await asyncio.sleep(0.3)
        return answer

    async def _ask(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        sent_at = time.monotonic()
        try:
            answer = await self.client.request(method, path, **more)
        except httpx2.TimeoutException:
            self.findings.unanswered.append(f"{method} {path}: no answer within {ANSWER_SECONDS:g} s")
            return None
        except httpx2.TransportError as error:
            if not self._was_down(since=sent_at):
                self.findings.unanswered.append(f"{method} {path}: {error!r}, and nobody had killed the service")
            return None
        self.findings.answers += 1
        if answer.status_code == 503 and answer.headers.get("Retry-After") and "json" in answer.headers["Content-Type"]:
            self.findings.refusals += 1
            return None
        if answer.status_code >= 500:
            self.findings.errors.append(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
            return None
        return answer

    def _was_down(self, since: float) -> bool:
        """Returns True if the service was down at this time, or up to two seconds before.

        A connection to a killed service may break a moment after a new service has started.
        """
        if self._service_is_down():
            self._down_at = time.monotonic()
        return self._down_at > since - 2.0

    async def _read_resources(self) -> None:
        """Reads random resources of random jobs until it is cancelled, and checks the answers."""
        while True:
            await asyncio.sleep(0.25)
            self._was_down(since=0.0)
            if not self.jobs:
                continue
            path, check = self._random_resource(self.random.choice(self.jobs[-3 * RECENT :]))
            answer = await self._ask("GET", path)
            if answer is not None and (answer.status_code != 200 or not check(answer.json())):
                self.findings.wrong.append(f"GET {path}: {answer.status_code} {answer.text[:300]}")

    def _random_resource(self, job: Job) -> tuple[str, Callable[[JSON], bool]]:
        """Returns a random path, and a function that checks the answer."""
        after = self.random.choice((0, 3, 20))
        readable: list[tuple[str, Callable[[JSON], bool]]] = [
            (f"/jobs/{job.id}", lambda body: body["id"] == job.id and body["name"] == job.key),
            (f"/jobs/{job.id}/events?after={after}&limit=50", lambda body: _is_dense(body["data"], after)),
            (f"/jobs/{job.id}/checkpoints", lambda body: isinstance(body["data"], list)),
            (f"/jobs/{job.id}/attempts", lambda body: _is_counted([row["attempt"] for row in body["data"]])),
            (f"/jobs/{job.id}/spec", lambda body: body["name"] == job.key),
            (f"/jobs?name={job.key}", lambda body: [row["id"] for row in body["data"]] == [job.id]),
            ("/nodes", lambda body: len(body["data"]) == 2),
            ("/readyz", lambda body: body["status"] in ("ok", "degraded")),
        ]
        return self.random.choice(readable)

    async def _watch_for_the_stuck(self) -> None:
        """Records each unfinished job without progress for a minute, although it has slots or could get them."""
        positions: dict[str, tuple[object, float]] = {}
        while True:
            await asyncio.sleep(2.0)
            under_way = {job.id: job for job in self.jobs if not job.is_settled}
            answer = await self._ask("GET", "/jobs?state=queued,starting,running,stopping&limit=100")
            if answer is None:
                positions = {names: (where, time.monotonic()) for names, (where, _) in positions.items()}
                continue
            rows = answer.json()["data"]
            has_room = sum(row["state"] != "queued" for row in rows) < 4
            for row in rows:
                where = (row["state"], row["reason"], row["last_no"])
                if positions.get(row["id"], (None, 0.0))[0] != where or (row["reason"] == "capacity" and not has_room):
                    positions[row["id"]] = (where, time.monotonic())
                elif time.monotonic() - positions[row["id"]][1] > at_ease(STUCK_SECONDS) and row["id"] in under_way:
                    self.findings.stuck.append(f"{row['id']} ({under_way[row['id']].kind}) stands at {where}")
                    positions[row["id"]] = (where, time.monotonic())

    # -- readers -------------------------------------------------------------------------------------------------------

    async def _read(self, dice: random.Random) -> None:
        """Reads one random job after another from beginning to end, and reconnects after every broken connection."""
        while not self._no_more:
            if not self.jobs:
                await asyncio.sleep(0.2)
                continue
            job = dice.choice(self.jobs[-RECENT:])
            cursor = checksum = 0
            is_over = False
            while not is_over:
                address = f"{self.system.url.replace('http', 'ws', 1)}/jobs/{job.id}/stream?after={cursor}"
                with suppress(OSError, TimeoutError, InvalidHandshake):
                    async with connect(address, max_size=None, compression=None) as socket:
                        cursor, checksum, is_over = await self._follow(socket, job, cursor, checksum)
                if not is_over:
                    self.findings.reconnects += 1
                    await asyncio.sleep(dice.uniform(0.2, 1.0))
            self.findings.checksums.setdefault(job.id, {})[cursor] = checksum

    async def _follow(self, socket: Any, job: Job, cursor: int, checksum: int) -> tuple[int, int, bool]:
        try:
            async for text in socket:
                frame = json.loads(text)
                for event in frame.get("events", ()):
                    if event["no"] != cursor + 1:
                        self.findings.torn_readers.append(f"{job.id}: {event['no']} came after {cursor}")
                    cursor, checksum = event["no"], seen_up_to(checksum, event)
                    self.findings.read_count += 1
                if "end" in frame:
                    if frame["last"] != cursor:
                        self.findings.torn_readers.append(f"{job.id}: it ended at {frame['last']}, seen up to {cursor}")
                    return cursor, checksum, True
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code not in (1000, 1001, 1012, 4408):
                self.findings.torn_readers.append(f"{job.id}: closed with {closed.rcvd.code} {closed.rcvd.reason}")
        return cursor, checksum, False

    async def _end_of(self, readers: list[asyncio.Task[None]]) -> None:
        """Waits for all readers, which must end because all jobs have ended."""
        finished_readers, late = await asyncio.wait(readers, timeout=STUCK_SECONDS) if readers else (set(), set())
        for reader in late:
            self.findings.torn_readers.append("a reader received no end of a job that has ended")
            reader.cancel()
        for reader in finished_readers:
            reader.result()


def seen_up_to(checksum: int, event: JSON) -> int:
    """Returns the checksum of all events up to this one, as a reader sees them."""
    return zlib.crc32(json.dumps(event, sort_keys=True).encode(), checksum)


def _is_dense(events: list[JSON], after: int) -> bool:
    return [event["no"] for event in events] == list(range(after + 1, after + 1 + len(events)))


def _is_counted(numbers: list[int]) -> bool:
    """Returns True if the numbers have no gap, in either direction."""
    return sorted(numbers) == list(range(1, len(numbers) + 1))
