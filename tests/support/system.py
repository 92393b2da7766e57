"""A whole system as its user has it: real service, real nodes, real Redis, a real database, and a client."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from httpx2.websockets import WebSocketDisconnect

from service.store import schema
from tests.support import plugins, preload
from tests.support.bundles import packed
from tests.support.gates import Gate
from tests.support.processes import REPOSITORY, Process, Processes, nothing_is_left_behind, started_at
from tests.support.redis_server import RedisServer

JSON = dict[str, Any]

SETTLED = {"succeeded", "failed", "cancelled", "paused"}

GLANCE, LEISURE = 0.05, 0.2
"""Seconds between two checks of a job, and between two checks of a state that comes late and stays.

Each check costs the test and the service some milliseconds of CPU time.
"""

# The lease is short enough that a test can wait for a lost worker. Control extends leases after it was unreachable for
# five seconds. A shorter lease would be lost if the machine stood still for a little less than five seconds.
SHORT = {
    "FOOTPLATE_LEASE_SECONDS": "8",
    "FOOTPLATE_BEAT_SECONDS": "0.5",
    "FOOTPLATE_CLAIM_SECONDS": "60",
    "FOOTPLATE_RETRY_BACKOFF_SECONDS": "0.1",
    "FOOTPLATE_STOP_SECONDS": "20",
    "FOOTPLATE_KILL_SECONDS": "3",
    "OMP_NUM_THREADS": "1",
}

SHORT_TOY: JSON = {"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 20, "logging_steps": 1}}
LONG_TOY: JSON = {
    "model": {"use": "toy/mlp", "args": {"dropout": 0.1}},
    "data": {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.002}},
    "training": {
        "max_steps": 120, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "logging_steps": 1,
        "save_strategy": "steps", "save_steps": 10, "dataloader_num_workers": 2, "seed": 7,
    },
}  # fmt: skip
"""A job of several seconds with everything that makes resuming hard: dropout, accumulation, data workers."""


@cache
def _migrated() -> bytes:
    """Returns the file of an empty SQLite database at the newest version."""
    with TemporaryDirectory() as folder:
        schema.migrate(f"sqlite:///{folder}/empty.db")
        return Path(folder, "empty.db").read_bytes()


def bring_to_schema(database_url: str) -> None:
    """Migrates the database. A new SQLite file is copied, because a migration costs a third of a second of CPU."""
    kind, _, path = database_url.partition(":///")
    if kind == "sqlite" and not Path(path).exists():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(_migrated())
    else:
        schema.migrate(database_url)


class System:
    """Starts and kills the real processes. `client` connects to the service that was started last."""

    def __init__(
        self,
        processes: Processes,
        redis: RedisServer,
        database_url: str,
        *,
        without: Sequence[str] = (),
        mortal: bool = False,
        **environment: str,
    ) -> None:
        """Takes the protections of tests/faults/off to switch off. `mortal` processes can be killed with `die_at`."""
        self.processes, self.redis = processes, redis
        self.folder = processes.folder / "home"
        self.folder.mkdir(exist_ok=True)
        self.environment = {
            **SHORT,
            "FOOTPLATE_HOME": str(self.folder),
            "FOOTPLATE_DATABASE": database_url,
            "FOOTPLATE_REDIS": redis.url,
            "FOOTPLATE_PORT": "0",
            **environment,
        }
        self.preload = processes.folder / "preload"
        path = environment.get("PYTHONPATH", str(REPOSITORY))
        if without or mortal:
            path = preload.write(self.preload, without=without, mortal=mortal)
        plugin = plugins.register(processes.folder / "plugin", plugins.OF_SYSTEMS)
        self.environment["PYTHONPATH"] = os.pathsep.join([str(plugin), path, str(REPOSITORY)])
        self._gates = 0
        self.services: dict[str, Process] = {}
        self.nodes: dict[int, Process] = {}
        self.url = ""
        self._clients: dict[str, httpx2.Client] = {}
        bring_to_schema(database_url)

    # -- processes ---------------------------------------------------------------------------------------------------

    def run(self, *words: str, name: str = "", before: Sequence[str] = (), **environment: str) -> Process:
        """Starts a program. `before` is the command line of another program that starts ours."""
        program = [*before, sys.executable, "-m", *words]
        return self.processes.start(*program, name=name or "-".join(words), env={**self.environment, **environment})

    def start_service(self, role: str = "all", name: str = "", *, wait: bool = True) -> Process:
        name = name or role
        url_file = self.folder / f"{name}.url"
        url_file.unlink(missing_ok=True)
        service = self.services[name] = self.run("service", role, name=name, FOOTPLATE_URL_FILE=str(url_file))
        if role != "control" and wait:
            service.until(url_file.exists, within=30, what=f"the service ({role}) listens")
            self.url = url_file.read_text().strip()
        return service

    def start_node(
        self, number: int = 1, *, slots: int = 1, wait: bool = True, before: Sequence[str] = (), **environment: str
    ) -> Process:
        own = {
            "FOOTPLATE_NODE_HOME": str(self.folder / f"node-{number}"),
            "FOOTPLATE_NODE_NAME": f"node-{number}",
            "FOOTPLATE_SLOTS": str(slots),
        }
        node = self.nodes[number] = self.run("worker", name=f"node-{number}", before=before, **{**own, **environment})
        if wait:
            self.until_node_is_up(number)
        return node

    def until_node_is_up(self, number: int) -> None:
        up, what = (lambda: self.node_is_up(number)), f"node {number} takes work"
        self.nodes[number].until(up, within=60, what=what, every=LEISURE)

    def start(self, *, slots: int = 1) -> System:
        self.start_service()
        self.start_node(slots=slots)
        return self

    def revive(self) -> None:
        """Restarts dead services, as systemd would. It does not wait for them, because they may die again at once."""
        for name, service in list(self.services.items()):
            if not service.is_running:
                self.start_service(service.argv[-1], name, wait=False)
            with suppress(FileNotFoundError):
                self.url = (self.folder / f"{name}.url").read_text().strip()

    def kill_everything(self) -> None:
        """Sends SIGKILL to every process at once. Redis is killed, too, and loses its data."""
        for process in [*self.nodes.values(), *self.services.values()]:
            process.signal(signal.SIGKILL)
        self.redis.kill()
        for process in [*self.nodes.values(), *self.services.values()]:
            process.wait(10)

    def training_pids(self, job: str) -> list[int]:
        """Returns the pids of the training processes of this job and of their data workers, the oldest first.

        Their working folder is in the folder of the job.
        """
        result = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and f"/jobs/{job}/" in os.readlink(entry / "cwd") + "/":
                    result.append((started_at(int(entry.name)), int(entry.name)))
        return [pid for _, pid in sorted(result)]

    def kill_training(self, job: str) -> None:
        """Sends SIGKILL to the training process of a job, which is the oldest of its group."""
        pids = self.training_pids(job)
        assert pids, f"no process trains {job}"
        os.kill(pids[0], signal.SIGKILL)

    def gate(self) -> Gate:
        """Returns a gate at which the training of one job waits for the test."""
        self._gates += 1
        return Gate(self.processes.folder / f"gate-{self._gates}")

    def until_reached(self, job: str, gate: Gate, step: int) -> None:
        self.until(
            lambda: gate.is_reached(step) or self.state(job) in SETTLED,
            within=60, what=f"training comes to the gate at {step}", job=job,
        )  # fmt: skip
        assert gate.is_reached(step), self.job(job)

    # -- what a user does --------------------------------------------------------------------------------------------

    @property
    def client(self) -> httpx2.Client:
        """Returns one client for each URL. `verify=False` saves 29 ms of CPU for loading certificates."""
        if self.url not in self._clients:
            self._clients[self.url] = httpx2.Client(base_url=self.url, timeout=60, verify=False)
        return self._clients[self.url]

    def forget_clients(self) -> None:
        """Forgets clients, because a test has closed their connections."""
        self._clients.clear()

    def node_is_up(self, number: int) -> bool:
        nodes = self.get("/nodes")["data"]
        return any(node["name"] == f"node-{number}" and node["state"] == "up" for node in nodes)

    def get(self, path: str, **params: Any) -> JSON:
        answer = self.client.get(path, params=params or None)
        assert answer.status_code == 200, f"GET {path}: {answer.status_code} {answer.text}"
        return dict(answer.json())

    def submit(self, spec: JSON | None = None, **changes: Any) -> str:
        answer = self.client.post("/jobs", json={**(spec or LONG_TOY), **changes})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def upload(self, files: Mapping[str, str | bytes]) -> str:
        """Uploads a bundle, and returns its sha256."""
        headers = {"Content-Type": "application/zip"}
        answer = self.client.post("/bundles", content=packed(files), headers=headers)
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["sha256"])

    def do(self, job: str, verb: str, body: JSON | None = None) -> httpx2.Response:
        return self.client.post(f"/jobs/{job}/{verb}", json=body) if body else self.client.post(f"/jobs/{job}/{verb}")

    def job(self, job: str) -> JSON:
        return self.get(f"/jobs/{job}")

    def state(self, job: str) -> str:
        return str(self.job(job)["state"])

    def until(self, predicate: Callable[[], Any], *, within: float, what: str, job: str, **more: Any) -> None:
        """Waits for a moment of a job. If it is late, the error shows the job and the end of every log."""
        try:
            self.processes.until(predicate, within=within, what=what, **{"every": GLANCE, **more})
        except AssertionError as late:
            raise AssertionError(f"{late}\n--- the job ---\n{json.dumps(self.job(job), indent=1)[:3000]}") from None

    def until_state(self, job: str, *states: str, within: float = 60) -> JSON:
        self.until(lambda: self.state(job) in states, within=within, what=f"the job is {' or '.join(states)}", job=job)
        return self.job(job)

    def until_settled(self, job: str, within: float = 90) -> JSON:
        self.until(lambda: self.state(job) in SETTLED, within=within, what="the job is settled", job=job, every=LEISURE)
        return self.job(job)

    def until_step(self, job: str, step: int, within: float = 60) -> None:
        """Waits until SQL has a log of this step."""
        last_no = 0

        def reached() -> bool:
            nonlocal last_no
            rows = self.metrics(job, after=last_no)
            last_no = rows[-1]["no"] if rows else last_no
            return any((row.get("step") or 0) >= step for row in rows)

        self.until(reached, within=within, what=f"the job logs step {step}", job=job)

    def until_checkpoint(self, job: str, step: int = 1, within: float = 60) -> None:
        def committed() -> bool:
            return any(row["step"] >= step for row in self.get(f"/jobs/{job}/checkpoints")["data"])

        self.until(committed, within=within, what=f"the job has a checkpoint of step {step} or later", job=job)

    def attempts(self, job: str) -> list[JSON]:
        return list(self.get(f"/jobs/{job}/attempts")["data"])

    def has_ended(self, job: str, attempt: int) -> bool:
        return any(row["attempt"] == attempt and row["ended_at"] for row in self.attempts(job))

    def states(self, job: str) -> list[str]:
        """Returns the states of the job's history, in order."""
        return [event["data"]["state"] for event in self.events(job) if event["kind"] == "state"]

    def metrics(self, job: str, after: int = 0) -> list[JSON]:
        return list(self.get(f"/jobs/{job}/metrics", limit=10_000, after=after)["data"])

    def events(self, job: str) -> list[JSON]:
        """Returns the whole history of a job, page by page."""
        result: list[JSON] = []
        while page := self.get(f"/jobs/{job}/events", after=result[-1]["no"] if result else 0, limit=1000)["data"]:
            result += page
        return result

    def watch(self, path: str) -> Iterator[JSON]:
        """Yields the frames of a websocket until the server closes it."""
        with self.client.websocket(path, max_message_size_bytes=16 << 20) as socket:
            try:
                while True:
                    yield json.loads(socket.receive_text(timeout=240))
            except WebSocketDisconnect as closed:
                if closed.code != 1000:
                    raise AssertionError(f"{path} closed with {closed.code} {closed.reason}") from closed

    def final_weights(self, job: str) -> bytes:
        listing = self.get(f"/jobs/{job}/outputs")["data"]
        path = next(entry["path"] for entry in listing if re.search(r"model\.safetensors$", entry["path"]))
        return bytes(self.client.get(f"/jobs/{job}/outputs/{path}").content)

    def counted(self, name: str) -> float | None:
        """Returns the value of a metric at /metrics, or None if it does not exist."""
        match = re.search(rf"^{name} (\S+)$", self.client.get("/metrics").text, re.MULTILINE)
        return float(match[1]) if match else None

    def losses(self, job: str) -> dict[int, float]:
        """Returns the loss of each step. If a step ran twice, the last report counts."""
        return {row["step"]: row["loss"] for row in self.metrics(job) if "loss" in row}


@contextmanager
def standing_system(
    folder: Path,
    database_url: str | None = None,
    *,
    slots: Sequence[int] = (2,),
    starting: type[Processes] = Processes,
    **environment: str,
) -> Iterator[System]:
    """Yields a service and nodes with these slots, for tests that leave them running. Nothing remains afterwards."""
    with ExitStack() as stack:
        stack.callback(nothing_is_left_behind, folder)
        redis = RedisServer().start()
        stack.callback(redis.close)
        processes = starting(folder)
        stack.callback(processes.stop_all)
        system = System(processes, redis, database_url or f"sqlite:///{folder}/footplate.db", **environment)
        system.start_service()
        for number, count in enumerate(slots, 1):
            system.start_node(number, slots=count, wait=False)
        for number in system.nodes:
            system.until_node_is_up(number)
        # A POST before that is accepted without a check of its components.
        processes.until(lambda: system.get("/components")["models"], within=60, what="the node's components are known")
        yield system


def assert_whole(events: list[JSON]) -> None:
    """Checks that a history has every `no`, and every seq of each source, exactly once."""
    assert [event["no"] for event in events] == list(range(1, len(events) + 1))
    sources: dict[tuple[int, int], list[int]] = {}
    for event in events:
        if event["source"] >= 0:
            sources.setdefault((event["attempt"], event["source"]), []).append(event["seq"])
    for seqs in sources.values():
        assert seqs == list(range(1, len(seqs) + 1))
