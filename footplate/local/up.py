"""The story of `footplate up`: start everything, say where it is, keep it running, stop it tidily."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from footplate.contract.lifecycle import NODE_BEGINS
from footplate.local.home import Home, hold, note_holder
from footplate.local.processes import Child, Failed, Family, Program, Stop, Stopped, die_with, python
from footplate.local.redis import redis_for

DEFAULT_PORT = 8080
START_SECONDS = 60.0
"""How long the service may take to answer: far more than it needs, on a machine that is busy elsewhere."""
NODE_SECONDS = 180.0
"""How long a node may take to announce its components: it imports torch and all that specs may name."""
LOOK_SECONDS = 0.15
"""Between two looks at the nodes: each takes CPU from their imports."""
AFTER_CHECKPOINT_SECONDS = 15.0
"""What a draining node gets beyond its own deadline, to tell Redis how its attempts ended."""


@dataclass(frozen=True)
class Options:
    home: Path
    port: int | None
    """None is our default, which gives way to any free port where it is taken."""
    nodes: int = 1
    as_json: bool = False
    first_job: bool = True


def up(options: Options) -> int:
    """Runs until it is asked to stop. Whatever happens, nothing that it started is left behind."""
    with hold(options.home) as home:
        stop = Stop()
        stop.listen()
        launcher = Launcher(home, options, Family(stop, say))
        try:
            launcher.start()
            launcher.family.keep_running()
        except Stopped:
            pass
        finally:
            launcher.stop()
    return 0


class Launcher:
    """Who is who among the children, so that each is started and stopped in its turn."""

    def __init__(self, home: Home, options: Options, family: Family) -> None:
        self.home, self.options, self.family = home, options, family
        self.nodes: list[Child] = []
        self.first_job: subprocess.Popen[bytes] | None = None
        self.env = environment(home, options)
        self.url = ""

    def start(self) -> None:
        self.start_redis()
        self.start_service()
        self.start_nodes()  # after the page: importing torch takes all that two cores have
        self.wait_for_components()
        note_holder(self.home, self.url)
        self.announce()
        self.start_first_job()

    def start_redis(self) -> None:
        """Unless the environment names one."""
        if "FOOTPLATE_REDIS" in os.environ:
            return
        redis = redis_for(self.home, dict(os.environ))
        child = self.family.start(redis.program)
        self.family.wait_until(redis.answers, child, within=START_SECONDS, what="Redis answers")
        self.env["FOOTPLATE_REDIS"] = redis.url

    def start_nodes(self) -> None:
        for number in range(1, self.options.nodes + 1):
            name = f"node-{number}"
            env = {"FOOTPLATE_NODE_HOME": str(self.home.path / name)}
            if self.options.nodes > 1 or "FOOTPLATE_NODE_NAME" not in self.env:
                env["FOOTPLATE_NODE_NAME"] = name
            patience = drain_seconds(self.env) + AFTER_CHECKPOINT_SECONDS
            self.nodes.append(self.family.start(self.program(name, "worker", env=env, patience=patience)))

    def start_service(self) -> None:
        """The service knows its schema and refuses another, so it need not wait for a migration that is seldom due."""
        is_first = not self.home.log("service").exists()
        if is_first:
            self.migrate()
        try:
            self.start_service_on_schema()
        except Failed:
            if is_first:
                raise
            self.migrate()
            self.start_service_on_schema()

    def migrate(self) -> None:
        self.family.run(self.program("migrate", "service", "migrate"))

    def start_service_on_schema(self) -> None:
        self.home.url_file.unlink(missing_ok=True)
        child = self.family.start(self.program("service", "service", "all"))
        try:
            self.family.wait_until(self.answers, child, within=START_SECONDS, what="the service answers")
        except Failed:
            self.family.give_up(child)
            raise
        # One that dies comes back where its users look for it.
        found = {"FOOTPLATE_PORT": str(urlsplit(self.url).port or 80)}
        child.program = replace(child.program, env={**child.program.env, **found})
        if self.options.port is None and found["FOOTPLATE_PORT"] != str(DEFAULT_PORT):
            say(f"port {DEFAULT_PORT} is taken; this one listens on {found['FOOTPLATE_PORT']}")

    def answers(self) -> bool:
        try:
            self.url = self.home.url_file.read_text().strip()
            with urlopen(f"{self.url}/livez", timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError, ValueError):
            return False

    def wait_for_components(self) -> None:
        """Waits until a node has announced since this start what a spec may name: what an earlier start left behind in
        SQL is another catalogue. A child that dies meanwhile ends the start, because it would die again."""
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said: set[tuple[str, str]] = set()

        def is_announced() -> bool:
            nodes = [node for node in self.ask("/nodes")["data"] if node["seen_at"] >= started_at]
            for node in nodes:
                # Why it takes no work, and why its training has root's rights.
                for sentence in {node["message"], node["exposed"]} - {None, NODE_BEGINS}:
                    if (node["name"], sentence) not in said:
                        said.add((node["name"], sentence))
                        say(f"{node['name']}: {sentence}")
            return any(node["catalogue_hash"] for node in nodes) and bool(self.ask("/components").get("models"))

        def is_ready() -> bool:
            try:
                return is_announced()
            except (OSError, ValueError):
                return False  # the service is busy, or has just died

        what = "a node has announced its components"
        self.family.wait_until(is_ready, *self.family.children, within=NODE_SECONDS, what=what, every=LOOK_SECONDS)

    def ask(self, path: str) -> dict[str, Any]:
        key = os.environ.get("FOOTPLATE_API_KEY")
        request = Request(self.url + path, headers={"Authorization": f"Bearer {key}"} if key else {})
        with urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))

    def announce(self) -> None:
        logs = {child.program.name: str(child.program.log) for child in self.family.children}
        if self.options.as_json:
            told = {"url": self.url, "pid": os.getpid(), "home": str(self.home.path), "logs": logs}
            print(json.dumps(told), flush=True)
        else:
            print(self.url + "\n" + welcome(self.url, self.home, logs), flush=True)

    def start_first_job(self) -> None:
        """By a process of its own, so that neither its waiting nor its failing is ours."""
        if self.options.first_job and not self.home.first_job.exists():
            quiet = ["--quiet"] if self.options.as_json else []
            words = python("footplate.local.first_job", self.url, str(self.home.first_job), *quiet)
            self.first_job = subprocess.Popen(words, start_new_session=True, preexec_fn=die_with(os.getpid()))
            Thread(target=self.first_job.wait, daemon=True).start()  # or it stays a zombie for as long as we run

    def program(self, name: str, *words: str, env: dict[str, str] | None = None, patience: float = 10.0) -> Program:
        return Program(name, python(*words), self.env | (env or {}), self.home.log(name), patience)

    def stop(self) -> None:
        """Nodes first, while service and Redis still take their last events; then the rest, the newest first."""
        if self.first_job is not None:
            self.first_job.kill()
            self.first_job.wait()
        if any(node.is_running for node in self.nodes):
            say("stopping: nodes checkpoint what runs. Ctrl-C again kills at once.")
        self.family.drain(self.nodes)
        for child in reversed(self.family.children):
            if child not in self.nodes:
                self.family.drain([child])


def environment(home: Home, options: Options) -> dict[str, str]:
    """What every child gets: ours, with the paths spelled out."""
    port = options.port if options.port is not None else DEFAULT_PORT if is_free(DEFAULT_PORT) else 0
    return dict(os.environ) | {
        # Whoever starts it is its operator and its user: his code runs with his own rights.
        "FOOTPLATE_CODE": os.environ.get("FOOTPLATE_CODE") or "on",
        "FOOTPLATE_HOME": str(home.path),
        "FOOTPLATE_PORT": str(port),
        "FOOTPLATE_URL_FILE": str(home.url_file),
    }


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((os.environ.get("FOOTPLATE_HOST") or "127.0.0.1", port))
        except OSError:
            return False
    return True


def drain_seconds(env: dict[str, str]) -> float:
    """As the nodes read it; they refuse a value that is no number with a sentence of their own."""
    try:
        return float(env.get("FOOTPLATE_DRAIN_SECONDS") or 60)
    except ValueError:
        return 60.0


def welcome(url: str, home: Home, logs: dict[str, str]) -> str:
    """Where things are, and three commands to paste, in this order."""
    key = '-H "Authorization: Bearer $FOOTPLATE_API_KEY" ' if os.environ.get("FOOTPLATE_API_KEY") else ""
    spec = '{"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 20000, "logging_steps": 100}}'
    return f"""
  page   {url}/        API   {url}/docs
  state  {home.path}   (database, artifacts, nodes)
  logs   {"  ".join(sorted(logs.values()))}

Next, in another terminal:
  id=$(curl -s {key}{url}/jobs -H 'Content-Type: application/json' -d '{spec}' | grep -o 'job_[0-9a-f]*' | head -1)
  curl -sN {key}{url}/jobs/$id/stream          # live; Ctrl-C stops looking, not training
  curl -sX POST {key}{url}/jobs/$id/pause      # and /resume, /cancel

Ctrl-C here checkpoints what runs and stops everything; the next start continues it.
"""


def say(text: str) -> None:
    """To stderr: stdout is for what programs read. Ends a live line that the first job may be drawing."""
    print(("\r\033[K" if sys.stderr.isatty() else "") + f"footplate: {text}", file=sys.stderr, flush=True)
