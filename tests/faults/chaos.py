"""Injects random faults into real processes one after another, and restarts processes that nothing else restarts."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from tests.support.postgres import PostgresServer
from tests.support.processes import children
from tests.support.system import System

FROZEN_SECONDS = 5.0
"""Seconds for which Redis is frozen, longer than the lease of the soak."""
AWAY_SECONDS = 3.0


class Chaos:
    """Injects the faults from the thread that started the processes, because they die with it.

    `done` counts the injected faults by name.
    """

    def __init__(
        self, system: System, seed: int, between: tuple[float, float], postgres: PostgresServer | None
    ) -> None:
        self.system, self.random, self.between, self.postgres = system, random.Random(seed), between, postgres
        self.counts: Counter[str] = Counter()
        self.service_is_down = False
        self._thaws: list[threading.Timer] = []

    def inject(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Injects faults for these seconds, or until `is_over`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_over():
            time.sleep(self.random.uniform(*self.between))
            self._check_that_all_run()
            self.inject_one()
        for thaw in self._thaws:
            thaw.join()

    def inject_one(self) -> None:
        """Injects one random fault. A fault that is listed several times is more frequent."""
        strikes: list[Callable[[], object]] = [
            self.training, self.training, self.training, self.data_worker, self.data_worker, self.supervisor,
            self.supervisor, self.idle_pool_child, self.warm_parent, self.worker, self.supervisor_frozen,
            self.redis_emptied, self.redis_flushed, self.redis_frozen, self.redis_away, self.service,
        ]  # fmt: skip
        if self.postgres is not None:
            strikes.append(self.database)
        chosen = self.random.choice(strikes)
        # A fault that found no process to kill did not happen, and is not counted.
        if chosen() is not False:
            self.counts[chosen.__name__] += 1

    # -- processes ---------------------------------------------------------------------------------------------------

    def training(self) -> bool:
        return self._kill(pid for pid in self._in_training() if not self._is_data_worker(pid))

    def data_worker(self) -> bool:
        return self._kill(pid for pid in self._in_training() if self._is_data_worker(pid))

    def supervisor(self) -> bool:
        return self._kill(self.supervisors())

    def supervisor_frozen(self) -> bool:
        """Freezes a supervisor for longer than its lease. Afterwards it must notice that its attempt was given up."""
        if not (result := self.supervisors()):
            return False
        pid = self.random.choice(result)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        past_its_lease = float(self.system.environment["FOOTPLATE_LEASE_SECONDS"]) + 2.0
        self._thaws.append(threading.Timer(past_its_lease, _thaw, [pid]))
        self._thaws[-1].start()
        return True

    def idle_pool_child(self) -> bool:
        busy = self.supervisors()
        return self._kill(pid for pid in self._pool() if pid not in busy)

    def warm_parent(self) -> bool:
        return self._kill(pid for node in self.system.nodes.values() for pid in children(node.pid) if _is_warm(pid))

    def worker(self) -> None:
        number = self.random.choice(list(self.system.nodes))
        self.system.nodes[number].kill()
        self.system.start_node(number, slots=2, wait=False)

    def service(self) -> None:
        self.service_is_down = True
        self.system.services["all"].kill()
        self.system.start_service()
        self.service_is_down = False

    # -- machines ----------------------------------------------------------------------------------------------------

    def redis_emptied(self) -> None:
        self.system.redis.restart_empty()

    def redis_flushed(self) -> None:
        self.system.redis.flush()

    def redis_frozen(self) -> None:
        self.system.redis.freeze()
        time.sleep(FROZEN_SECONDS)
        self.system.redis.thaw()

    def redis_away(self) -> None:
        self.system.redis.kill()
        time.sleep(AWAY_SECONDS)
        self.system.redis.start()

    def database(self) -> None:
        """Kills PostgreSQL and starts it, so that it recovers from its log."""
        assert self.postgres is not None
        self.postgres.kill()
        self.postgres.start()

    # -- processes to kill --------------------------------------------------------------------------------------------

    def _kill(self, pids: Iterable[int]) -> bool:
        if not (names := sorted(pids)):
            return False
        with suppress(ProcessLookupError):
            os.kill(self.random.choice(names), signal.SIGKILL)
        return True

    def _pool(self) -> list[int]:
        nodes = [pid for node in self.system.nodes.values() for pid in children(node.pid) if _parent(pid) == node.pid]
        return [pid for pid in nodes if not _is_warm(pid) and b"catalogue" not in _command(pid)]

    def supervisors(self) -> list[int]:
        """Returns the pool processes that have a journal open."""
        return [pid for pid in self._pool() if any(name.endswith(".journal") for name in _open_files(pid))]

    def _in_training(self) -> list[int]:
        """Returns every process whose working folder is in the folder of an attempt."""
        inside = str(self.system.folder / "artifacts" / "jobs")
        result = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "cwd").startswith(inside):
                    result.append(int(entry.name))
        return result

    def _is_data_worker(self, pid: int) -> bool:
        """Returns True if the process was forked by training and not by the warm parent."""
        return not _is_warm(_parent(pid))

    def _check_that_all_run(self) -> None:
        """Fails if a node or a service has died that no fault killed."""
        for process in [*self.system.nodes.values(), *self.system.services.values()]:
            sentence = f"{process.name} ended by itself with {process.popen.poll()}"
            assert process.is_running, f"{sentence}\n{process.output[-3000:]}"


def _thaw(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _is_warm(pid: int) -> bool:
    """Returns True for the warm parent itself. Its forks have the same command line, but another parent."""
    return b"footplate.runtime.warm_parent" in _command(pid) and b"footplate.runtime.warm_parent" not in _command(
        _parent(pid)
    )


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _open_files(pid: int) -> list[str]:
    result = []
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                result.append(os.readlink(link))
    return result
