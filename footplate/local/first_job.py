"""Submits the toy job on the first start, and shows its progress: a live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

IDEMPOTENCY_KEY = "footplate-first-job"
"""The key that makes a repeated submission harmless, after a start that was killed before it noted the job."""

# The job is long enough to be paused by hand, and short enough to be watched to its end.
SPEC = {
    "name": "first job",
    "model": "toy/mlp",
    "data": "toy/regression",
    "training": {"max_steps": 20_000, "logging_steps": 100, "save_steps": 1_000, "save_total_limit": 2},
}

POLL_SECONDS = 0.5
open_without_proxy = build_opener(ProxyHandler({})).open
"""Opens a URL of this machine. `urlopen` would send the request to the proxy of `http_proxy`."""
SETTLED = ("succeeded", "failed", "cancelled", "paused")


def main(url: str, id_file: Path, *, quiet: bool) -> int:
    """Submits the toy job, and shows its progress. Errors are printed, and `footplate up` goes on without the job."""
    try:
        job = request(f"{url}/jobs", SPEC, {"Idempotency-Key": IDEMPOTENCY_KEY})
        id_file.write_text(job["id"])
        if not quiet:
            show(url, job["id"])
    except HTTPError as error:
        print(
            f"the first job was not accepted ({error.code}): {error.read(2000).decode(errors='replace')}",
            file=sys.stderr,
        )
        return 1
    except (URLError, OSError, ValueError, KeyError) as error:
        print(f"the progress of the first job cannot be shown: {error}", file=sys.stderr)
        return 1
    return 0


def show(url: str, job: str) -> None:
    """Shows a job until it ends or is paused. In a pipe, prints a line for each state and each tenth of the steps."""
    print(f"A first job to look at: {url}/#{job}", flush=True)
    last_printed = None
    while True:
        snapshot = request(f"{url}/jobs/{job}")
        if sys.stdout.isatty():
            print(f"\r\033[K{progress_line(snapshot)}", end="\n" if snapshot["state"] in SETTLED else "", flush=True)
        elif last_printed != (last_printed := (snapshot["state"], tenth_of_steps(snapshot))):
            print(progress_line(snapshot), flush=True)
        if snapshot["state"] in SETTLED:
            return
        time.sleep(POLL_SECONDS)


def request(url: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"} | (headers or {})
    if key := os.environ.get("FOOTPLATE_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    with open_without_proxy(Request(url, data, headers), timeout=10) as answer:
        parsed: dict[str, Any] = json.load(answer)
        return parsed


def tenth_of_steps(snapshot: dict[str, Any]) -> int:
    progress = snapshot.get("progress") or {}
    return int(10 * (progress.get("step") or 0) // (progress.get("max_steps") or 1))


def progress_line(snapshot: dict[str, Any]) -> str:
    """Returns a line like `first job running  step 1200/20000  loss 0.1234  about 12 s left`."""
    progress, metrics = snapshot.get("progress") or {}, snapshot.get("metrics") or {}
    waiting_text = f": {snapshot.get('message') or snapshot['reason']}" if snapshot["state"] == "queued" else ""
    parts = [f"first job {snapshot['state']}{waiting_text}"]
    if progress.get("step"):
        parts.append(f"step {progress['step']}/{progress.get('max_steps', '?')}")
    if isinstance(loss := metrics.get("loss"), float):
        parts.append(f"loss {loss:.4f}")
    if isinstance(eta := progress.get("eta_s"), int | float) and snapshot["state"] == "running":
        parts.append(f"about {eta:.0f} s left")
    return "  ".join(parts)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--quiet"]
    sys.exit(main(words[0], Path(words[1]), quiet="--quiet" in sys.argv))
