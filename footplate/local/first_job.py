"""Submits the toy job on a first start, once, and shows it move: a live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

IDEMPOTENCY_KEY = "footplate-first-job"
"""Submitting twice makes one job: a start that was killed between the answer and the note repeats itself harmlessly."""

# Long enough to be paused and killed by hand, short enough to be seen to end.
SPEC = {
    "name": "first job",
    "model": "toy/mlp",
    "data": "toy/regression",
    "training": {"max_steps": 20_000, "logging_steps": 100, "save_steps": 1_000, "save_total_limit": 2},
}

POLL_SECONDS = 0.5
RESTS = ("succeeded", "failed", "cancelled", "paused")


def main(url: str, note: Path, *, quiet: bool) -> int:
    """Whatever goes wrong here is told in a sentence and harms nobody: this process is nobody's parent."""
    try:
        job = submit(url)
        note.write_text(job["id"])
        if not quiet:
            show(url, job["id"])
    except HTTPError as error:
        print(
            f"the first job was not accepted ({error.code}): {error.read(2000).decode(errors='replace')}",
            file=sys.stderr,
        )
        return 1
    except (URLError, OSError, ValueError, KeyError) as error:
        print(f"the first job cannot be shown any longer: {error}", file=sys.stderr)
        return 1
    return 0


def submit(url: str) -> dict[str, Any]:
    return ask(f"{url}/jobs", SPEC, {"Idempotency-Key": IDEMPOTENCY_KEY})


def show(url: str, job: str) -> None:
    """Until the job rests. A terminal gets one line that moves, a pipe a line per state and per tenth of the way."""
    print(f"A first job to look at: {url}/#{job}", flush=True)
    told = None
    for seen in follow(url, job):
        if sys.stdout.isatty():
            print(f"\r\033[K{sentence(seen)}", end="\n" if seen["state"] in RESTS else "", flush=True)
        elif told != (told := (seen["state"], tenths(seen))):
            print(sentence(seen), flush=True)


def follow(url: str, job: str) -> Iterator[dict[str, Any]]:
    while True:
        seen = ask(f"{url}/jobs/{job}")
        yield seen
        if seen["state"] in RESTS:
            return
        time.sleep(POLL_SECONDS)


def ask(url: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"} | (headers or {})
    if key := os.environ.get("FOOTPLATE_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, headers), timeout=10) as answer:
        parsed: dict[str, Any] = json.load(answer)
        return parsed


def tenths(seen: dict[str, Any]) -> int:
    progress = seen.get("progress") or {}
    return int(10 * (progress.get("step") or 0) // (progress.get("max_steps") or 1))


def sentence(seen: dict[str, Any]) -> str:
    """`first job running  step 1200/20000  loss 0.1234  about 12 s left`"""
    progress, metrics = seen.get("progress") or {}, seen.get("metrics") or {}
    waits_for = f": {seen.get('message') or seen['reason']}" if seen["state"] == "queued" else ""
    parts = [f"first job {seen['state']}{waits_for}"]
    if progress.get("step"):
        parts.append(f"step {progress['step']}/{progress.get('max_steps', '?')}")
    if isinstance(loss := metrics.get("loss"), float):
        parts.append(f"loss {loss:.4f}")
    if isinstance(eta := progress.get("eta_s"), int | float) and seen["state"] == "running":
        parts.append(f"about {eta:.0f} s left")
    return "  ".join(parts)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--quiet"]
    sys.exit(main(words[0], Path(words[1]), quiet="--quiet" in sys.argv))
