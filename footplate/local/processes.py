"""Children of the launcher: started in sessions of their own, started again when they die, gone when we are."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

POLL_SECONDS = 0.05
QUICK_SECONDS = 10.0
"""A child that lives shorter than this died quickly."""
QUICK_DEATHS = 5
"""So many in a row, and we give up."""
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.5, 10.0
"""Before a dead child is started again; doubles with each quick death."""
UNUSABLE_SETTINGS = 2
"""How our programs exit when they refuse their settings: another start would hear the same."""
LOG_BYTES = 16 * 2**20
"""A log that is longer when its program starts is put aside as `.1`."""

_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """It cannot go on, and the sentence says why."""


class Stopped(Exception):
    """Somebody asked us to stop while we were starting."""


class Stop:
    """What signals asked of us: `asked` is a drain, `now` a second Ctrl-C.

    Only Ctrl-C escalates: `make` passes a SIGTERM on that the process group may have got already.
    """

    asked = False
    now = False

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.now = self.now or (self.asked and number == signal.SIGINT)
        self.asked = True


@dataclass(frozen=True)
class Program:
    """What to start, and how long it may take to go when asked."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    drain_seconds: float = 10.0


@dataclass
class Child:
    """One program and its present process."""

    program: Program
    popen: subprocess.Popen[bytes] = field(init=False)
    started_at: float = field(init=False)
    quick_deaths: int = 0
    start_again_at: float | None = None
    """Set while it is down and waits for its next start."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        with self.program.log.open("ab") as log:
            self.popen = subprocess.Popen(
                list(self.program.argv),
                env=dict(self.program.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        self.started_at, self.start_again_at = time.monotonic(), None

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            self.popen.send_signal(number)

    def kill(self) -> None:
        """The whole group: a program that died may have left some of it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


class Family:
    """Everything that we started, in the order of starting."""

    def __init__(self, stop: Stop, say: Callable[[str], None]) -> None:
        self.children: list[Child] = []
        self._stop, self._say = stop, say

    def start(self, program: Program) -> Child:
        put_aside(program.log)
        child = Child(program)
        self.children.append(child)
        return child

    def run(self, program: Program) -> None:
        """One that ends by itself, and must end well."""
        child = self.start(program)
        while child.is_running:
            self.pause()
        self.children.remove(child)
        if child.popen.returncode != 0:
            raise Failed(f"{ended(child)}.{last_words(program.log)}")

    def wait_until(
        self, ready: Callable[[], bool], *children: Child, within: float, what: str, every: float = POLL_SECONDS
    ) -> None:
        """Waits for a moment of starting children. Raises Failed when one of them dies, and when time is up: the last
        child's log is shown then."""
        deadline = time.monotonic() + within
        while not ready():
            for child in children:
                if not child.is_running:
                    raise Failed(f"{ended(child)} before {what}.{last_words(child.program.log)}")
            if time.monotonic() > deadline:
                raise Failed(f"after {within:g} s still not true: {what}.{last_words(children[-1].program.log)}")
            self.pause(every)

    def give_up(self, child: Child) -> None:
        child.kill()
        self.children.remove(child)

    def pause(self, seconds: float = POLL_SECONDS) -> None:
        if self._stop.asked:
            raise Stopped
        time.sleep(seconds)

    def keep_running(self) -> None:
        """Until somebody asks us to stop: whoever dies is started again, a little later each time it is quick."""
        while not self._stop.asked:
            for child in self.children:
                self._look_after(child)
            time.sleep(POLL_SECONDS)

    def _look_after(self, child: Child) -> None:
        if child.start_again_at is not None:
            if time.monotonic() >= child.start_again_at:
                child.start()
            return
        if child.is_running:
            return
        child.kill()
        if child.popen.returncode == UNUSABLE_SETTINGS:
            raise Failed(f"{ended(child)}.{last_words(child.program.log)}")
        lived = time.monotonic() - child.started_at
        child.quick_deaths = child.quick_deaths + 1 if lived < QUICK_SECONDS else 0
        if child.quick_deaths >= QUICK_DEATHS:
            log = child.program.log
            raise Failed(f"{child.program.name} died {QUICK_DEATHS} times in a row; giving up.{last_words(log)}")
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**child.quick_deaths)
        child.start_again_at = time.monotonic() + delay
        self._say(f"{ended(child)} after {lived:.0f} s; starting it again in {delay:g} s (log: {child.program.log})")

    def drain(self, children: Sequence[Child]) -> None:
        """TERM to these, all at once; KILL to whole groups after the longest of their deadlines, or when told `now`."""
        for child in children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + max((child.program.drain_seconds for child in children), default=0.0)
        while any(child.is_running for child in children) and not self._stop.now:
            if time.monotonic() > deadline:
                late = ", ".join(child.program.name for child in children if child.is_running)
                self._say(f"{late} did not stop in time and is killed; a job continues from its last checkpoint")
                break
            time.sleep(POLL_SECONDS)
        for child in children:
            child.kill()


def die_with(parent: int) -> Callable[[], None]:
    """A preexec_fn: the kernel kills the child when the launcher is gone, a SIGKILL to the launcher included.

    The launcher must start children from its main thread: the kernel watches the thread that forked.
    """

    def arrange() -> None:
        _libc.prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it died between the fork and this line
            os._exit(1)

    return arrange


def python(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def put_aside(log: Path) -> None:
    with suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES:
            log.rename(log.with_name(log.name + ".1"))


def ended(child: Child) -> str:
    code = child.popen.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    return f"{child.program.name} {how}"


def last_words(log: Path, lines: int = 8) -> str:
    """The end of a log, to stand under a sentence."""
    said = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return f" Its last words, in {log}:\n" + "\n".join(f"    {line}" for line in said)
