"""A client that submits jobs all the time, each until it is accepted, and reads them."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

import httpx2

from tests.support.processes import until
from tests.support.system import System, assert_whole

PAUSE_SECONDS = 0.05
WAITING = {"model": "toy/mlp", "data": "toy/regression", "resources": {"pool": "nowhere"}}
"""The spec of a job that stays queued, because no node takes it."""


class Visitor(threading.Thread):
    """Submits and reads jobs in a `with` block, checks every answer, and records the acknowledged jobs."""

    def __init__(self, system: System) -> None:
        super().__init__(name="visitor", daemon=True)
        self.system = system
        self.client = httpx2.Client(base_url=system.url, timeout=60, verify=False)
        self.jobs: dict[str, str] = {}
        """Acknowledged jobs by Idempotency-Key."""
        self.answers: Counter[int] = Counter()
        self.reasons: set[str] = set()
        """Reasons of the refusals."""
        self.wrong: list[str] = []
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self.join(90)

    def run(self) -> None:
        while not self._is_over.wait(PAUSE_SECONDS):
            key = f"visit-{len(self.jobs)}"
            answer = self._ask("POST", "/jobs", json={**WAITING, "name": key}, headers={"Idempotency-Key": key})
            if answer is not None and answer.status_code == 201:
                self.jobs[key] = answer.json()["id"]
                self._ask("GET", f"/jobs/{self.jobs[key]}")
            self._ask("GET", "/jobs", params={"limit": 5})

    def _ask(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        try:
            answer = self.client.request(method, path, **more)
        except httpx2.TransportError as error:
            self.wrong.append(f"{method} {path} was not answered: {error!r}")
            return None
        self.answers[answer.status_code] += 1
        if answer.status_code == 503:
            self._note_refusal(answer)
        elif answer.status_code not in (200, 201):
            self.wrong.append(f"{method} {path} answered {answer.status_code}: {answer.text}")
        return answer

    def _note_refusal(self, answer: httpx2.Response) -> None:
        body = answer.json()
        is_problem = answer.headers["content-type"] == "application/problem+json" and body["code"] == "unavailable"
        if not (is_problem and answer.headers["retry-after"].isdigit() and "database" in body["detail"]):
            self.wrong.append(f"a 503 that does not say what is wrong: {answer.headers} {answer.text}")
        self.reasons.add(body["detail"])

    # -- moments -----------------------------------------------------------------------------------------------------

    def until_refused(self, because: str = "", within: float = 60) -> None:
        """Waits until the client is refused once more with this reason."""
        self.reasons.clear()
        what = f"a request is refused because of {because!r}"
        until(lambda: self.wrong or any(because in reason for reason in self.reasons), within=within, what=what)
        assert not self.wrong, self.wrong[0]

    def until_served(self, within: float = 60) -> None:
        accepted = len(self.jobs)
        until(lambda: self.wrong or len(self.jobs) > accepted + 1, within=within, what="jobs are accepted again")
        assert not self.wrong, self.wrong[0]

    # -- afterwards --------------------------------------------------------------------------------------------------

    def must_have_all(self) -> None:
        """Checks that the service has exactly the accepted jobs, each once and with a complete history."""
        assert not self.wrong, self.wrong[0]
        ids_by_name: dict[str, list[str]] = {}
        cursor: dict[str, str] = {}
        while True:
            page = self.system.get("/jobs", limit=200, **cursor)
            for job in page["data"]:
                ids_by_name.setdefault(job["name"] or "", []).append(job["id"])
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        result = {name: ids for name, ids in ids_by_name.items() if name.startswith("visit-")}
        # The last job may be stored without an answer, because the visitor did not repeat the request.
        result.pop(f"visit-{len(self.jobs)}", None)
        assert result == {name: [job] for name, job in self.jobs.items()}, "accepted jobs must be stored exactly once"
        for job in list(self.jobs.values())[-20:]:
            assert_whole(self.system.events(job))
