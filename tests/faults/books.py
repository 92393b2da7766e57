"""The checks after a soak: nothing is lost, run twice, stuck, torn or different."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.faults.chaos import Chaos
from tests.faults.soak import Findings, Job, Load, seen_up_to
from tests.support.processes import until
from tests.support.system import JSON, System, assert_whole

TIMINGS = ("runtime", "per_second")
"""Endings of metrics' names whose values differ from run to run."""


@dataclass(frozen=True)
class Result:
    """The result that every job of one kind must have."""

    weights: dict[str, tuple[JSON, bytes]]
    curves: dict[tuple[str, int], JSON]

    @classmethod
    def of(cls, system: System, job: str, events: list[JSON]) -> Result:
        curves = {}
        for event in events:
            if event["kind"] in ("log", "eval") and "train_loss" not in event["data"]:
                # If a step ran twice, the last report counts.
                reports = {name: value for name, value in event["data"].items() if not name.endswith(TIMINGS)}
                curves[event["kind"], event["step"]] = reports
        return cls(_tensors(system.final_weights(job)), curves)


def _tensors(file: bytes) -> dict[str, tuple[JSON, bytes]]:
    """Returns the tensors of a safetensors file by name, because the rest of its header has no fixed order."""
    start = 8 + int.from_bytes(file[:8], "little")
    header: JSON = json.loads(file[8:start])
    header.pop("__metadata__", None)
    places = {name: tensor.pop("data_offsets") for name, tensor in header.items()}
    return {name: (header[name], file[start + begin : start + end]) for name, (begin, end) in places.items()}


Books = dict[str, list[str]]


def open_books(findings: Findings) -> Books:
    return {
        "jobs lost": [],
        "jobs made twice, attempts run twice": [],
        f"stuck for over {60} s": findings.stuck,
        "torn histories": [],
        "torn readers": findings.torn_readers,
        "seen by a reader and not stored so": [],
        "results unlike a quiet run's": [],
        "cancelled, and it went on": [],
        "wrong answers": findings.wrong,
        "5xx other than 503": findings.errors,
        "unanswered while the service stood": findings.unanswered,
        "processes left": [],
        "files left": [],
    }


def audit(system: System, load: Load, expected: dict[str, Result], scratch: Path) -> Books:
    books = open_books(load.findings)
    for job in load.jobs:
        _audit_job(system, job, expected[job.kind], load.findings.checksums.get(job.id, {}), books)
    _audit_leftovers(system, scratch, books)
    return books


def _audit_job(system: System, job: Job, expected: Result, checksums: dict[int, int], books: Books) -> None:
    title = f"{job.id} ({job.kind}, {job.mood})"
    same = [row["id"] for row in system.get("/jobs", name=job.key)["data"]]
    if job.id not in same:
        books["jobs lost"].append(f"{title}: {same}")
        return
    if len(same) > 1:
        books["jobs made twice, attempts run twice"].append(f"{title}: {same}")
    events = system.events(job.id)
    try:
        assert_whole(events)
    except AssertionError as error:
        books["torn histories"].append(f"{title}: {error}")
    times = Counter(
        event["attempt"] for event in events if event["kind"] == "state" and event["data"]["state"] == "running"
    )
    books["jobs made twice, attempts run twice"] += [f"{title}: {number}" for number, n in times.items() if n > 1]
    _audit_seen(title, events, checksums, books)
    final = system.job(job.id)
    if job.cancelled:
        if final["state"] != "cancelled":
            books["cancelled, and it went on"].append(f"{title}: {final['state']} {final['reason']}")
    elif final["state"] != "succeeded":
        books["results unlike a quiet run's"].append(f"{title}: {final['state']} {final['message']} {final['error']}")
    elif Result.of(system, job.id, events) != expected:
        books["results unlike a quiet run's"].append(_difference(title, Result.of(system, job.id, events), expected))


def _audit_seen(title: str, events: list[JSON], checksums: dict[int, int], books: Books) -> None:
    checksum = 0
    for event in events:
        checksum = seen_up_to(checksum, event)
        if checksums.get(event["no"], checksum) != checksum:
            books["seen by a reader and not stored so"].append(f"{title} up to {event['no']}")


def _difference(title: str, result: Result, expected: Result) -> str:
    steps = [key for key, value in expected.curves.items() if result.curves.get(key) != value]
    more = sorted(result.curves.keys() - expected.curves.keys())
    same = "the same" if result.weights == expected.weights else "other"
    return f"{title}: {same} weights; differs at {steps[:5]}; has besides {more[:5]}"


def _audit_leftovers(system: System, scratch: Path, books: Books) -> None:
    """Checks that finished attempts leave nothing but the files that their users requested."""
    artifacts, nodes = system.folder / "artifacts", sorted(system.folder.glob("node-*"))

    def journals() -> list[Path]:
        return [path for node in nodes for path in (node / "journals").iterdir()]

    def training() -> list[int]:
        inside = f"{artifacts}/jobs"
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _stands_in(pid, inside)]

    for look, page in (
        (training, "processes left"),
        (journals, "files left"),
        (lambda: _temporary(scratch), "files left"),
    ):
        try:
            until(lambda look=look: not look(), within=20, what="no processes, journals or temporary files are left")
        except AssertionError:
            books[page] += [str(violation) for violation in look()]
    # The temporary folder of an interrupted save is allowed, because the service prunes it after two days.
    stream = system.redis.say("XLEN", "fp:events")
    if not stream.startswith(b":0"):
        books["files left"].append(f"events in Redis: {stream!r}")


def _temporary(scratch: Path) -> list[Path]:
    return sorted(scratch.glob("footplate-*"))


def _stands_in(pid: int, folder: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd").startswith(folder)
    except OSError:
        return False


def report_of(books: Books, load: Load, chaos: Chaos, what: str) -> str:
    """Formats the books as a table, with the details of every line that is not zero."""
    result = load.findings
    head = (
        f"{what}\n\n- {len(load.jobs)} jobs, {sum(chaos.counts.values())} faults: `{_list(chaos.counts)}`\n"
        f"- {result.answers:,} answers, {result.refusals} of them 503\n"
        f"- {result.read_count:,} events read over {result.reconnects:,} reconnects\n"
        f"- {result.resumed_after_poison} jobs resumed after the reason `poison`"
    )
    lines = [f"| {page} | {len(entries)} |" for page, entries in books.items()]
    detail = [f"{page}: {entry}" for page, entries in books.items() for entry in entries[:5]]
    return "\n".join([head, "", "| books | entries |", "|---|---|", *lines, *detail])


def _list(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counted.most_common())
