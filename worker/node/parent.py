"""The Celery parent: locks the node's folder, starts the warm parent and the heartbeats, and ends attempts in a drain.

Each pool process that the parent forks supervises one attempt at a time. None of these processes imports torch.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from celery import signals
from celery.worker import state as celery_state
from celery.worker.consumer import Consumer

from footplate.contract.environment import secrets_of
from footplate.contract.errors import SettingsError
from footplate.contract.host.environment import forget_unused
from footplate.contract.host.linux import Leftovers, adopt_orphans, die_with_parent
from footplate.contract.host.node_folder import NodeFolder
from footplate.contract.lifecycle import NODE_BEGINS
from footplate.contract.messages import Gpu
from footplate.contract.redis_keys import CANARY_TASK
from worker.attempt.rendezvous import require_own
from worker.celery_app import queue_of
from worker.identity import Node, claim_node
from worker.node.gpus import inventory
from worker.node.heartbeat import Heartbeat
from worker.node.rights import training_rights
from worker.settings import WorkerSettings
from worker.tracing import traces

log = logging.getLogger("footplate.worker")

CELERY_SECONDS = 10.0
"""The time that Celery has to exit after the last attempt has ended."""
RESTART_SECONDS = (0.0, 1.0, 5.0, 15.0, 60.0)
"""The pause before each restart of the warm parent, because its imports take CPU time from running attempts."""
LONG_LIFE_SECONDS = 60.0
"""A warm parent that was ready and lived longer than this is restarted without a pause."""

PASSED_ON = frozenset({
    "PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "PYTHONPATH",
    "PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "XDG_CACHE_HOME", "SSL_CERT_FILE",
})  # fmt: skip
PASSED_ON_PREFIXES = (
    "LC_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "TRITON_", "MALLOC_",
)  # fmt: skip
"""The variables that training inherits. A list of secret variables instead would never be complete."""


@cache
def settings() -> WorkerSettings:
    return WorkerSettings.from_environment()


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that the warm parent and training inherit. Keys and URLs are not among them."""
    variables = {
        name: value for name, value in environ.items() if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
    }
    # OPENBLAS_NUM_THREADS keeps numpy to one thread. HF_HUB_DISABLE_TELEMETRY keeps TRL from reporting each Trainer.
    return {**variables, "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


class SilentConsumer(Consumer):  # type: ignore[misc]
    """Celery's consumer without messages to other workers, because nodes report to the service only.

    The setting `worker_consumer` names this class, so that a plain `celery -A worker.app worker` uses it too.
    """

    restart_count = 0
    """Celery's own start value is -1, with which a pool process that dies at once ends the whole node with exit code 0.
    With 0 the pool replaces that process, as it does at any later time."""

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        silent = {"without_mingle": True, "without_gossip": True, "without_heartbeat": True}
        super().__init__(*args, worker_options={**(worker_options or {}), **silent}, **kwargs)


class WarmKeeper(threading.Thread):
    """Starts the warm parent, and starts it again in a thread whenever it dies. Meanwhile the node reports trouble."""

    def __init__(self, folder: NodeFolder) -> None:
        super().__init__(name="warm-keeper", daemon=True)
        self._folder = folder
        folder.be_in_trouble(NODE_BEGINS)
        # The warm parent lives as long as this pipe's writing end is open, so only this process may hold that end.
        self._lifeline, self.writing_end = os.pipe2(os.O_CLOEXEC)
        self._process = self._begin()

    def run(self) -> None:
        failures = 0
        while True:
            start = time.monotonic()
            code = self._process.wait()
            # Training dies with the warm parent. Processes that escaped from training's group become our children.
            why, was_ready = self._report(code)
            Leftovers(_is_in_our_session).end()
            failures = 0 if was_ready and time.monotonic() - start > LONG_LIFE_SECONDS else failures + 1
            pause = RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)]
            log.error("this node can start no training: %s. It retries in %.0f s", why, pause)
            time.sleep(pause)
            self._process = self._begin_again()

    def _report(self, code: int) -> tuple[str, bool]:
        """Returns why this node is not ready now, and whether it was ready before."""
        trouble = self._folder.why_not_ready()
        if trouble is not None and trouble != NODE_BEGINS:
            return trouble, False
        why = f"its warm parent, which starts training, ended with exit code {code}"
        self._folder.be_in_trouble(why)
        return why, trouble is None

    def _begin_again(self) -> subprocess.Popen[bytes]:
        while True:
            try:
                return self._begin()
            except OSError as error:
                log.error("this node can start no training: its warm parent cannot be started (%s). It retries", error)
                time.sleep(RESTART_SECONDS[-1])

    def _begin(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "footplate.runtime.warm_parent", str(self._folder.run), str(os.getpid())]
        environment = clean_environment(os.environ)
        return subprocess.Popen(command, stdin=self._lifeline, env=environment, start_new_session=True)


def _is_in_our_session(pid: int) -> bool:
    """Returns True if a process is in this node's session. Training processes have sessions of their own."""
    with suppress(ProcessLookupError):
        return os.getsid(pid) == os.getsid(0)
    return True


def _is_of_our_last_start(pid: int) -> bool:
    """Returns True if the child has this node's command line, so this node started it before its own restart.

    Other children may come from the program that started this node.
    """
    with suppress(OSError):
        # A process that writes its arguments itself may leave more than one NUL at their end.
        return _command_line(pid) == _command_line("self")
    return False


def _command_line(pid: int | Literal["self"]) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")


@dataclass(slots=True)
class Parent:
    """The Celery parent of this process's node. Pool processes inherit the object when they are forked."""

    node: Node
    pid: int
    keeper: WarmKeeper
    heartbeat: Heartbeat
    is_draining: bool = False


_parent: Parent | None = None


def parent() -> Parent:
    assert _parent is not None, "this process is not part of a node"
    return _parent


def node() -> Node:
    """Returns the node that this process belongs to."""
    return parent().node


def connect() -> None:
    """Registers the functions below for Celery's signals. Without `weak=False` Celery would drop them."""
    signals.celeryd_init.connect(_become_node, weak=False)
    signals.worker_process_init.connect(_become_pool_process, weak=False)
    signals.worker_process_shutdown.connect(lambda **_: traces().close(), weak=False)
    signals.worker_ready.connect(_be_ready, weak=False)
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).addFilter(_is_worth_logging)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Returns False for Celery's lines about canaries that came back, which would fill the log of an idle node."""
    return record.levelno > logging.INFO or CANARY_TASK not in record.getMessage()


def _become_node(conf: Any, **_: Any) -> None:
    """Makes this process a node, or exits with an error.

    Celery ignores exceptions of its receivers, so the node would run without heartbeats and without an error.
    """
    try:
        _make_node(conf)
    except SettingsError as error:
        raise SystemExit(f"footplate worker: {error}") from error
    except Exception as error:
        log.exception("the node cannot start")
        raise SystemExit(f"footplate worker: the node cannot start: {error!r}") from error


def _make_node(conf: Any) -> None:
    """Makes the node before Celery reads its settings, because the queue and the pool's size depend on the node."""
    global _parent
    # A pool process that hung before `die_with_parent` survives a restart, and still holds the node's lock.
    Leftovers(lambda pid: not _is_of_our_last_start(pid)).end()
    require_own(settings())
    gpus: list[Gpu] = inventory(settings().gpus)
    claimed_node = claim_node(settings().node_path, settings().slot_count(len(gpus)), secrets_of(os.environ))
    node = replace(claimed_node, rights=training_rights(settings(), claimed_node.folder))
    forget_unused(node.folder.root)
    queue = queue_of(node.id)
    conf.task_queues = [queue]
    conf.task_default_queue = conf.task_default_exchange = conf.task_default_routing_key = queue.name
    # Celery's pool has one process more than the node has slots, so that no canary waits for a running attempt.
    conf.worker_concurrency = node.slots + 1
    traces()
    adopt_orphans()
    _parent = Parent(node, os.getpid(), WarmKeeper(node.folder), Heartbeat(settings(), node, gpus))


def _become_pool_process(**_: Any) -> None:
    die_with_parent(parent().pid)
    os.close(parent().keeper.writing_end)


def _be_ready(**_: Any) -> None:
    parent().keeper.start()
    parent().heartbeat.start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, _drain)


def _drain(number: int, frame: object) -> None:
    """Ends the attempts first and Celery afterwards. Celery's own handlers would leave no time for a checkpoint."""
    if parent().is_draining:
        # A second signal ends the node at once. Training dies with it, and journals and checkpoints stay.
        os._exit(1)
    parent().is_draining = True
    node().folder.drain.touch()
    threading.Thread(target=_end_when_drained, name="drain", daemon=True).start()


def _end_when_drained() -> None:
    heartbeat = parent().heartbeat
    log.info("draining: no new attempts, and running ones have %.0f s to checkpoint", settings().drain_seconds)
    heartbeat.send_now()
    # Supervisors stop training within `drain_seconds`. The node waits 5 s longer, so that it ends after them.
    deadline = time.monotonic() + settings().drain_seconds + 5.0
    while heartbeat.resender.running() and time.monotonic() < deadline:
        time.sleep(0.05)
    celery_state.should_stop = 0
    time.sleep(CELERY_SECONDS)
    log.warning("Celery has not ended in %.0f s, so the process exits without waiting any longer", CELERY_SECONDS)
    os._exit(0)
