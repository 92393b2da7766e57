"""Runs `footplate up`: starts everything, prints the URL, restarts what dies, and stops everything in order."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from footplate.contract.events import now_text
from footplate.contract.host.linux import die_with_parent
from footplate.contract.lifecycle import NODE_BEGINS
from footplate.local.first_job import open_without_proxy, request
from footplate.local.home import Home, hold, record_holder
from footplate.local.processes import Child, Children, Failed, Program, Stopped, StopSignals, python
from footplate.local.redis import answers, redis_program, redis_socket

DEFAULT_PORT = 8080
START_SECONDS = 60.0
"""The longest wait until Redis or the service answers. It is long, because the machine may be busy."""
NODE_SECONDS = 180.0
"""The longest wait until a node announces its components. The node imports torch and every component before."""
LOOK_SECONDS = 0.15
"""The interval at which nodes are checked. Each check takes CPU time from the nodes' imports."""
AFTER_CHECKPOINT_SECONDS = 15.0
"""The time after a draining node's own deadline in which it may still report the ends of its attempts."""


@dataclass
class Options:
    home: Path
    port: int | None
    """The port. None means the default port, or any free port if the default port is in use."""
    nodes: int = 1
    as_json: bool = False
    first_job: bool = True


def up(options: Options) -> int:
    """Starts everything, and runs until a signal. At the end, also after an error, stops what was started."""
    with hold(options.home) as home:
        stop = StopSignals()
        stop.listen()
        launcher = Launcher(home, options, Children(stop, report))
        try:
            launcher.start()
            launcher.children.keep_running()
        except Stopped:
            pass
        finally:
            launcher.stop()
    return 0


class Launcher:
    """Starts Redis, the service and the nodes in this order, and stops the nodes first."""

    def __init__(self, home: Home, options: Options, children: Children) -> None:
        self.home, self.options, self.children = home, options, children
        self.exits = ExitStack()
        self.nodes: list[Child] = []
        self.first_job: subprocess.Popen[bytes] | None = None
        self.env = environment(home, options)
        self.url = ""

    def start(self) -> None:
        if not self.options.as_json:
            nodes = "1 node" if self.options.nodes == 1 else f"{self.options.nodes} nodes"
            report(f"starting Redis, the service and {nodes}. A node imports torch, which may take a minute.")
        self.start_redis()
        self.start_service()
        # The nodes start after the service answers, because importing torch keeps two cores fully busy.
        self.start_nodes()
        self.wait_for_components()
        record_holder(self.home, self.url)
        self.announce()
        self.start_first_job()

    def start_redis(self) -> None:
        """Starts Redis, unless the environment names one."""
        if os.environ.get("FOOTPLATE_REDIS"):
            return
        path = self.exits.enter_context(redis_socket(self.home))
        child = self.children.start(redis_program(self.home, path, dict(os.environ)))
        self.children.wait_until(
            partial(answers, path), child, timeout_seconds=START_SECONDS, milestone="Redis answered"
        )
        self.env["FOOTPLATE_REDIS"] = f"unix://{quote(str(path))}"

    def start_nodes(self) -> None:
        for number in range(1, self.options.nodes + 1):
            name = f"node-{number}"
            env = {"FOOTPLATE_NODE_HOME": str(self.home.path / name)}
            if self.options.nodes > 1 or not self.env.get("FOOTPLATE_NODE_NAME"):
                env["FOOTPLATE_NODE_NAME"] = name
            seconds = drain_seconds(self.env) + AFTER_CHECKPOINT_SECONDS
            self.nodes.append(self.children.start(self.program(name, "worker", env=env, drain_seconds=seconds)))

    def start_service(self) -> None:
        """Starts the service, and migrates the database only if needed, because a migration takes time.

        A service refuses to start on another version's schema. Then the database is migrated, and the service started
        again.
        """
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
        self.children.run(self.program("migrate", "service", "migrate"))

    def start_service_on_schema(self) -> None:
        self.home.url_file.unlink(missing_ok=True)
        child = self.children.start(self.program("service", "service", "all"))
        try:
            self.children.wait_until(
                self.answers, child, timeout_seconds=START_SECONDS, milestone="the service answered"
            )
        except Failed:
            child.kill()
            self.children.all.remove(child)
            raise
        # A service that is restarted must listen on the same port.
        port = str(urlsplit(self.url).port or 80)
        child.program = replace(child.program, env={**child.program.env, "FOOTPLATE_PORT": port})
        if self.options.port is None and port != str(DEFAULT_PORT):
            report(f"port {DEFAULT_PORT} is in use, so the service listens on {port}")

    def answers(self) -> bool:
        try:
            self.url = self.home.url_file.read_text().strip()
            with open_without_proxy(f"{self.url}/livez", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError):
            return False

    def wait_for_components(self) -> None:
        """Waits until a node has announced its components. A catalogue of an earlier start in SQL does not count.

        A child that dies meanwhile ends the start, because it would die again.
        """
        started_at = now_text()
        printed_sentences: set[tuple[str, str]] = set()

        def is_ready() -> bool:
            try:
                nodes = [node for node in request(f"{self.url}/nodes")["data"] if node["seen_at"] >= started_at]
                for node in nodes:
                    # `message` says why a node takes no work, and `exposed` why its training has root's rights.
                    for sentence in {node["message"], node["exposed"]} - {None, NODE_BEGINS}:
                        if (node["name"], sentence) not in printed_sentences:
                            printed_sentences.add((node["name"], sentence))
                            report(f"{node['name']}: {sentence}")
                has_catalogue = any(node["catalogue_hash"] for node in nodes)
                return has_catalogue and bool(request(f"{self.url}/components").get("models"))
            except (OSError, ValueError):
                return False  # The service is busy, or has just died.

        self.children.wait_until(
            is_ready,
            *self.children.all,
            timeout_seconds=NODE_SECONDS,
            milestone="a node announced its components",
            interval_seconds=LOOK_SECONDS,
        )

    def announce(self) -> None:
        logs = {child.program.name: str(child.program.log) for child in self.children.all}
        if self.options.as_json:
            text = json.dumps({"url": self.url, "pid": os.getpid(), "home": str(self.home.path), "logs": logs})
        else:
            text = self.url + "\n" + welcome(self.url, self.home, logs)
        print_or_drop(text, sys.stdout)

    def start_first_job(self) -> None:
        """Submits the first job in a process of its own, so that its waits and errors do not affect the launcher."""
        if self.options.first_job and not self.home.first_job.exists():
            quiet = ["--quiet"] if self.options.as_json else []
            words = python("footplate.local.first_job", self.url, str(self.home.first_job), *quiet)
            self.first_job = subprocess.Popen(
                words, start_new_session=True, preexec_fn=partial(die_with_parent, os.getpid())
            )
            # Without a wait the process would stay a zombie while the launcher runs.
            Thread(target=self.first_job.wait, daemon=True).start()

    def program(
        self, name: str, *words: str, env: dict[str, str] | None = None, drain_seconds: float = 10.0
    ) -> Program:
        return Program(name, python(*words), self.env | (env or {}), self.home.log(name), drain_seconds)

    def stop(self) -> None:
        """Stops the nodes first, because they need the service and Redis. Then stops the rest, the newest first."""
        if self.first_job is not None:
            self.first_job.kill()
            self.first_job.wait()
        if any(node.is_running for node in self.nodes):
            report("stopping: running jobs write checkpoints. A second Ctrl-C kills everything at once.")
        self.children.drain(self.nodes)
        for child in reversed(self.children.all):
            if child not in self.nodes:
                self.children.drain([child])
        self.exits.close()


def environment(home: Home, options: Options) -> dict[str, str]:
    """Returns the environment of every child: this process's own, with the home, the port and the URL file."""
    port = options.port if options.port is not None else DEFAULT_PORT if is_free(DEFAULT_PORT) else 0
    return dict(os.environ) | {
        # The user who runs `footplate up` is the operator, too, so own code runs with that user's rights.
        "FOOTPLATE_CODE": os.environ.get("FOOTPLATE_CODE") or "on",
        "FOOTPLATE_HOME": str(home.path),
        "FOOTPLATE_PORT": str(port),
        "FOOTPLATE_URL_FILE": str(home.url_file),
    }


def is_free(port: int) -> bool:
    host = os.environ.get("FOOTPLATE_HOST") or "127.0.0.1"
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def drain_seconds(env: dict[str, str]) -> float:
    """Returns the nodes' drain deadline. The nodes themselves report a value that is not a number."""
    try:
        return float(env.get("FOOTPLATE_DRAIN_SECONDS") or 60)
    except ValueError:
        return 60.0


def welcome(url: str, home: Home, logs: dict[str, str]) -> str:
    """Returns the addresses and folders, and three commands to paste, in this order."""
    words = '-H "Authorization: Bearer $FOOTPLATE_API_KEY" ' if os.environ.get("FOOTPLATE_API_KEY") else ""
    # curl sends requests to this machine through a proxy, too, unless no_proxy names it.
    is_proxied = {"http", "all"} & getproxies().keys() and not proxy_bypass(urlsplit(url).hostname or "")
    words = f"--noproxy '*' {words}" if is_proxied else words
    port, is_open = urlsplit(url).port, os.environ.get("FOOTPLATE_HOST") in ("0.0.0.0", "::")
    other_address = f"\n  elsewhere  http://{socket.gethostname()}:{port}/   (from other machines)" if is_open else ""
    spec = '{"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 20000, "logging_steps": 100}}'
    return f"""
  dashboard  {url}/        API  {url}/docs{other_address}
  state      {home.path}   (database, artifacts, nodes)
  logs       {"  ".join(sorted(logs.values()))}

Next, in another terminal:
  id=$(curl -s {words}{url}/jobs -H 'Content-Type: application/json' -d '{spec}' | grep -o 'job_[0-9a-f]*' | head -1)
  curl -sN {words}{url}/jobs/$id/stream          # live; Ctrl-C stops the stream, not the training
  curl -sX POST {words}{url}/jobs/$id/pause      # and /resume, /cancel

Ctrl-C here writes checkpoints of running jobs and stops everything. The next start continues the jobs.
"""


def report(text: str) -> None:
    """Prints to stderr, because programs read stdout. First clears a live line that the first job may have printed."""
    print_or_drop(("\r\033[K" if sys.stderr.isatty() else "") + f"footplate: {text}", sys.stderr)


def print_or_drop(text: str, stream: IO[str]) -> None:
    """Prints a text, or drops it and all later ones if the terminal was closed or the reader of the pipe has ended.

    An error would end `footplate up` before the running jobs have written their checkpoints.
    """
    try:
        print(text, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
