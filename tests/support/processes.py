"""Starts real processes for tests, waits for them, and ends all of them after the test."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2

from tests.support import template

T = TypeVar("T")
POLL_SECONDS = 0.02
AFTER_EXIT_SECONDS = 2.0
"""Seconds within which the messages that a program sent before its exit must arrive."""
NOT_THERE_YET = (OSError, httpx2.TransportError)
"""Errors that a predicate may raise while its subject is still starting."""
REPOSITORY = Path(__file__).resolve().parents[2]

_libc = ctypes.CDLL(None, use_errno=True)


def until(
    predicate: Callable[[], T],
    *,
    within: float = 10.0,
    what: str,
    logs: Iterable[Path] = (),
    programs: Sequence[Process] = (),
    despite: tuple[type[Exception], ...] = NOT_THERE_YET,
    every: float = POLL_SECONDS,
) -> T:
    """Calls `predicate` until its answer is true, and returns that answer.

    After the deadline, raises AssertionError with the ends of the logs. Once all `programs` have exited, waits only a
    moment for what they have sent before.

    >>> until(lambda: url_file.exists(), within=5, what="the service listens")
    """
    deadline = Deadline(within)
    logs = [*logs, *(program.log for program in programs)]
    last: Exception | None = None
    while True:
        try:
            if answer := predicate():
                return answer
            last = None
        except despite as error:
            last = error
        if programs and not any(program.is_running for program in programs):
            deadline.shorten(AFTER_EXIT_SECONDS)
        if deadline.is_over():
            raise AssertionError(_late(what, within, logs, last) + _exits(programs))
        time.sleep(every)


async def until_async(
    predicate: Callable[[], Awaitable[T] | T],
    *,
    within: float = 10.0,
    what: str,
    logs: Iterable[Path] = (),
    despite: tuple[type[Exception], ...] = NOT_THERE_YET,
) -> T:
    """Does the same as `until` for a predicate that may be a coroutine function, without blocking the event loop."""
    deadline = Deadline(within)
    last: Exception | None = None
    while True:
        try:
            answer = predicate()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return answer
            last = None
        except despite as error:
            last = error
        if deadline.is_over():
            raise AssertionError(_late(what, within, logs, last))
        await asyncio.sleep(POLL_SECONDS)


class Deadline:
    """The end of a wait, in seconds of an idle machine, which pass more slowly on a busy machine.

    A wait always has at least eight checks, because the machine itself may stand still for a long time.
    """

    CHECKS = 8

    def __init__(self, seconds: float) -> None:
        self._left, self._at_once = seconds, max(0.0, seconds) / self.CHECKS
        self._checked_at = time.monotonic()

    def shorten(self, seconds: float) -> None:
        """Reduces the remaining time to at most this many seconds."""
        self._left = min(self._left, seconds)

    def is_over(self) -> bool:
        """Counts a check that failed, and returns True if the time is over."""
        now = time.monotonic()
        self._left -= min((now - self._checked_at) / at_ease(1), self._at_once)
        self._checked_at = now
        return self._left <= 0


class Standstill(threading.Thread):
    """Measures the longest time for which this machine let no process run, in `seconds`.

    It is for measurements in another process, which cannot notice the standstill itself.
    """

    TICK_SECONDS = 0.05

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds = 0.0
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        while not self._is_over.is_set():
            slept_at = time.monotonic()
            self._is_over.wait(self.TICK_SECONDS)
            self.seconds = max(self.seconds, time.monotonic() - slept_at - self.TICK_SECONDS)


def at_ease(seconds: float) -> float:
    """Returns the seconds scaled by the load of this machine.

    Processes that want to run at this moment count, too, because the load average is too slow. Use this only for
    measurements, because `until` scales its time itself.
    """
    load, _, _, runnable, *_ = Path("/proc/loadavg").read_text().replace("/", " ").split()
    return seconds * max(1.0, max(float(load), int(runnable)) / (os.cpu_count() or 1))


def _late(what: str, within: float, logs: Iterable[Path], last: Exception | None) -> str:
    message = f"not within {within:g} s: {what}"
    if last is not None:
        message += f"\nlast error: {last!r}"
    return message + "".join(f"\n--- tail of {log} ---\n{tail(log)}" for log in logs)


def _exits(programs: Sequence[Process]) -> str:
    return "".join(
        f"\n{program.name} has exited with {program.popen.returncode}" for program in programs if not program.is_running
    )


def tail(log: Path, lines: int = 40) -> str:
    if not log.exists():
        return "(no such file)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(empty)"


PORTS = range(10_000, 32_000)
"""Ports below those that the kernel assigns, so that a restarted program finds its port free."""


_reservations: list[socket.socket] = []
"""Sockets whose names reserve the ports of this process. They are never connected."""


def free_port() -> int:
    """Returns a free TCP port outside the range of the kernel, and reserves it until this test process ends.

    Each test process searches its own part of the range. The name of an abstract socket reserves the port, because the
    program that will listen on the port starts later.
    """
    worker, of = (int(os.environ.get(f"PYTEST_XDIST_{name}", "0").strip("gw")) for name in ("WORKER", "WORKER_COUNT"))
    mine = PORTS[worker :: of + 1]
    while True:
        port = random.SystemRandom().choice(mine)
        reservation = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, suppress(OSError):
            reservation.bind(f"\0footplate-test-port-{port}")
            probe.bind(("127.0.0.1", port))
            _reservations.append(reservation)
            return port
        reservation.close()


def die_with_parent(how: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Returns a preexec_fn that ends the process if pytest is killed.

    Ctrl-C has its default effect, also if a shell runs pytest in the background with SIGINT ignored.
    """

    def arrange() -> None:
        _libc.prctl(1, int(how), 0, 0, 0)  # PR_SET_PDEATHSIG
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return arrange


class Process:
    """One started program, which has its own session and process group, and writes its output to one log file."""

    def __init__(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.name, self.argv, self.log = name, list(argv), log
        with log.open("ab") as out:
            self.popen: Any = template.fork(self.argv, env=env, cwd=str(cwd), out=out.fileno()) or subprocess.Popen(
                self.argv,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the program, but not to its children."""
        self.popen.send_signal(number)

    def terminate(self, within: float = 20.0) -> int:
        """Sends SIGTERM, and returns the exit code. If the program does not end, raises AssertionError with the log."""
        self.signal(signal.SIGTERM)
        return self.wait(within)

    def kill(self) -> None:
        """Sends SIGKILL to the program, but not to its children, which must notice this themselves."""
        self.popen.kill()
        self.popen.wait()

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def wait(self, within: float = 20.0) -> int:
        until(lambda: not self.is_running, within=within, what=f"{self.name} exits", logs=[self.log])
        return int(self.popen.returncode)

    def until(self, predicate: Callable[[], T], *, within: float = 20.0, what: str, **more: Any) -> T:
        """Does the same as the function `until`, and fails at once if the program has exited."""

        def alive_and() -> T:
            if not self.is_running:
                reason = f"{self.name} exited with {self.popen.returncode} before: {what}"
                raise AssertionError(f"{reason}\n--- tail of {self.log} ---\n{tail(self.log)}")
            return predicate()

        return until(alive_and, within=within, what=what, logs=[self.log], **more)


class Processes:
    """Starts the programs of one test, and ends all of them when the test is over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[Process] = []

    def start(
        self,
        *argv: str,
        name: str | None = None,
        env: Mapping[str, str | Path | int | float] | None = None,
        cwd: Path = REPOSITORY,
    ) -> Process:
        """Starts Python if the first argument is an option, as in `start("-m", "service")`, and otherwise a program."""
        words = [sys.executable, *argv] if argv[0].startswith("-") else list(argv)
        name = name or "-".join(word for word in words[1:3] if not word.startswith(("-", "/"))) or Path(words[0]).name
        log = self.folder / f"{len(self.programs)}-{name}.log"
        full = clean_environment() | {key: str(value) for key, value in (env or {}).items()}
        process = Process(name, words, env=full, cwd=cwd, log=log)
        self.programs.append(process)
        return process

    def until(self, predicate: Callable[[], T], *, within: float = 20.0, what: str, **more: Any) -> T:
        """Does the same as the function `until`, for all programs of this test."""
        return until(predicate, within=within, what=what, programs=self.programs, **more)

    def stop_all(self, within: float = 5.0) -> None:
        """Sends SIGKILL to our programs and SIGTERM to others, and finally SIGKILL to each process group.

        The children of our programs must die with them.
        """
        for process in reversed(self.programs):
            if template.is_ours(process.argv):
                process.kill_group()
            elif process.is_running:
                process.thaw()
                process.signal(signal.SIGTERM)
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and any(process.is_running for process in self.programs):
            time.sleep(POLL_SECONDS)
        for process in self.programs:
            process.kill_group()


def clean_environment() -> dict[str, str]:
    """Returns this environment without its FOOTPLATE_ settings, and with one thread for each process."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("FOOTPLATE_")}
    return variables | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}


def is_alive(pid: int) -> bool:
    """Returns True if the process runs. A zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def started_at(pid: int) -> int:
    """Returns the start time of a process in ticks since the boot. Unlike a pid, it is never used again."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def children(pid: int) -> list[int]:
    """Returns the pids of all living descendants of a process, children before grandchildren."""
    parents = dict(_parents())
    result, level = list[int](), [pid]
    while level := [child for child, parent in parents.items() if parent in level]:
        result += level
    return result


def _parents() -> Iterator[tuple[int, int]]:
    for pid in pids():
        with suppress(OSError, IndexError):
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                yield pid, int(parent)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def processes_using(folder: Path, *, others: Collection[int] = ()) -> dict[int, str]:
    """Returns the processes with the folder in their arguments, environment, working folder or open files.

    `others` ran before the test, and are not checked, because each check costs 60 µs of CPU time.
    """
    return {
        pid: _command(pid)
        for pid in pids()
        if pid not in others and pid != os.getpid() and is_alive(pid) and _mentions(Path(f"/proc/{pid}"), str(folder))
    }


def kill_left_behind(folder: Path) -> dict[int, str]:
    """Kills the processes that use the folder, and returns them."""
    remaining = processes_using(folder)
    for pid in remaining:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return remaining


def nothing_is_left_behind(folder: Path, *, others: Collection[int] = ()) -> None:
    """Waits until all processes that use a test's folder are gone. Kills and reports those that stay."""
    try:
        until(lambda: not processes_using(folder, others=others), within=3, what="the test's processes are gone")
    except AssertionError:
        if remaining := kill_left_behind(folder):
            raise AssertionError(f"left behind and killed now: {remaining}") from None


def _mentions(process: Path, folder: str) -> bool:
    """Returns True if the process has the folder in its arguments or environment, or a file in the folder open."""
    word, below = folder.encode(), (folder + "/").encode()
    with suppress(OSError):
        for part in ("cmdline", "environ"):
            content = (process / part).read_bytes()
            if below in content or word + b"\0" in content:
                return True
        for link in (process / "cwd", *(process / "fd").iterdir()):
            # The process may close a file meanwhile. Its other files must be checked all the same.
            with suppress(OSError):
                if os.readlink(link).startswith(folder):
                    return True
    return False


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return "?"
