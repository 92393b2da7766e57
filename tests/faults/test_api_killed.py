"""An API process is killed in the midst of a request or of a stream, and the client goes on with another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import httpx2
import pytest
from httpx2.websockets import HTTPXWSException

from footplate.contract.crash_points import Moment
from tests.faults.visitor import WAITING
from tests.support import preload
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, LONG_TOY, System, assert_whole

NAMES = ("first", "second", "third")


@pytest.fixture
def apis(processes: Processes, redis: RedisServer, database_url: str, protection_off: list[str]) -> Apis:
    return Apis(System(processes, redis, database_url, without=protection_off, mortal=True))


class Apis:
    """Several API processes on one database. A client whose API process has died uses the next API process."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.urls: dict[str, str] = {}
        self.start(*NAMES)

    def start(self, *names: str) -> None:
        for name in names:
            self.system.start_service("api", name, wait=False)
        for name in names:
            url_file = self.system.folder / f"{name}.url"
            self.system.services[name].until(url_file.exists, within=60, what=f"{name} listens")
            self.system.url = self.urls[name] = url_file.read_text().strip()

    def kill(self, name: str) -> None:
        self.system.services[name].kill()

    def until_one_died(self, moment: Moment) -> str:
        system = self.system
        deaths = system.processes.until(
            lambda: preload.deaths(system.preload), within=30, what=f"one of the services dies at {moment}"
        )
        died = next(name for name in NAMES if system.services[name].pid == deaths[moment])
        system.services[died].wait(10)
        return died

    def post(self, name: str, key: str) -> httpx2.Response | None:
        """Returns the answer, or None if the API died before it answered."""
        headers = {"Idempotency-Key": key}
        with suppress(httpx2.TransportError):
            return httpx2.post(f"{self.urls[name]}/jobs", json={**WAITING, "name": key}, headers=headers, timeout=60)
        assert self.system.services[name].wait(10) < 0
        return None


@pytest.mark.fault(16, without="one job for each Idempotency-Key", red="2 jobs were made of one")
@pytest.mark.fault(16, without="a job is stored before it is acknowledged", red="was acknowledged and is not there")
def test_an_api_that_dies_during_a_post_leaves_one_job_and_one_answer(apis: Apis) -> None:
    system = apis.system
    for moment in (Moment.BEFORE_SUBMIT_COMMITS, Moment.AFTER_SUBMIT_COMMITS):
        preload.die_at(system.preload, {moment: 1})
        answers = [answer for name in NAMES if (answer := apis.post(name, key=moment)) is not None]
        died = apis.until_one_died(moment)

        alive = next(name for name in NAMES if name != died)
        jobs = httpx2.get(f"{apis.urls[alive]}/jobs", params={"name": moment}, timeout=60).json()["data"]
        messages = {answer.json()["id"] for answer in answers}
        assert messages <= {job["id"] for job in jobs}, f"{messages} was acknowledged and is not there"
        assert len(jobs) == 1, f"{len(jobs)} jobs were made of one"
        assert len(answers) == 2
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in answers}) == 1, "the same request is answered the same"
        apis.start(died)


@pytest.mark.fault(16, without="a reader's cursor", red="came twice")
def test_a_reader_continues_at_another_api_process_with_its_cursor(apis: Apis) -> None:
    system = apis.system
    system.start_service("control")
    system.start_node()
    job = system.submit(LONG_TOY)
    reader = Reader(apis, job)

    for name in NAMES[:-1]:
        reader.read(name, until_more_than=30)
        apis.kill(name)
        reader.read_frames_in_transit()
    reader.read(NAMES[-1])

    numbers = [event["no"] for event in reader.events]
    assert len(numbers) == len(set(numbers)), f"{len(numbers) - len(set(numbers))} events came twice"
    assert reader.end == {"end": "succeeded", "last": numbers[-1]}
    assert_whole(reader.events)
    assert reader.events == system.events(job)


class Reader:
    """Follows a job over a websocket. If it breaks, the reader reconnects with the last `no` that it received."""

    def __init__(self, apis: Apis, job: str) -> None:
        self.apis, self.job = apis, job
        self.events: list[JSON] = []
        self.end: JSON = {}
        self.frames: Iterator[JSON] = iter(())

    def read(self, name: str, until_more_than: int | None = None) -> None:
        self.frames = self.open(name)
        enough = None if until_more_than is None else len(self.events) + until_more_than
        for frame in self.frames:
            self.take(frame)
            if enough is not None and len(self.events) > enough:
                return

    def read_frames_in_transit(self) -> None:
        """Reads the frames that were in transit when the API process died."""
        for frame in self.frames:
            self.take(frame)

    def take(self, frame: JSON) -> None:
        self.events += frame.get("events", [])
        if "end" in frame:
            self.end = frame

    def open(self, name: str) -> Iterator[JSON]:
        after = self.events[-1]["no"] if self.events else 0
        client = httpx2.Client(base_url=self.apis.urls[name], timeout=60, verify=False)
        with (
            suppress(HTTPXWSException, httpx2.TransportError),
            client.websocket(f"/jobs/{self.job}/stream?after={after}", max_message_size_bytes=16 << 20) as socket,
        ):
            while True:
                yield json.loads(socket.receive_text(timeout=240))
