"""Starts and restarts the child processes of `footplate up`. The kernel kills them if `footplate up` is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from footplate.contract.host.linux import die_with_parent

POLL_SECONDS = 0.05
QUICK_SECONDS = 10.0
"""A child that ends earlier than this after its start has died quickly."""
QUICK_DEATHS = 5
"""The number of quick deaths in a row after which the launcher fails."""
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.5, 10.0
"""The shortest and longest wait before a dead child is restarted. The wait doubles with each quick death."""
UNUSABLE_SETTINGS = 2
"""The exit status of programs that refuse their settings. Such a program is not restarted."""
LOG_BYTES = 16 * 2**20
"""The size at which a log is renamed to `.1` when its program starts."""


class Failed(Exception):
    """The launcher cannot continue. The message says why."""


class Stopped(Exception):
    """The launcher received a signal to stop while it was starting."""


class StopSignals:
    """Receives signals. The first one sets `is_requested`, and a second Ctrl-C sets `is_immediate`.

    A second SIGTERM does not. If `make` passes on a SIGTERM that the whole process group has received, the two signals
    are one request to stop.
    """

    is_requested = False
    is_immediate = False

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)
        # `nohup` starts a program with SIGHUP ignored, so that the program continues without its terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.is_immediate = self.is_immediate or (self.is_requested and number == signal.SIGINT)
        self.is_requested = True


@dataclass(frozen=True)
class Program:
    """A program to start, and the time that it has to stop."""

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
    """The time of the next start, if the child has died and waits for its restart."""

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
                # The kernel watches the thread that forked, so the launcher starts children in its main thread.
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        self.started_at, self.start_again_at = time.monotonic(), None

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        """Kills the child's whole process group, because a program that died may have left processes."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


class Children:
    """The child processes of `footplate up`, in the order in which they were started."""

    def __init__(self, stop: StopSignals, report: Callable[[str], None]) -> None:
        self.all: list[Child] = []
        self._stop, self._report = stop, report

    def start(self, program: Program) -> Child:
        rotate(program.log)
        child = Child(program)
        self.all.append(child)
        return child

    def run(self, program: Program) -> None:
        """Runs a program and waits for its end. Raises Failed if its exit status is not 0."""
        child = self.start(program)
        while child.is_running:
            self.pause()
        self.all.remove(child)
        if child.popen.returncode != 0:
            raise Failed(f"{exit_text(child)}.{end_of_log(program.log)}")

    def wait_until(
        self,
        is_ready: Callable[[], bool],
        *children: Child,
        timeout_seconds: float,
        milestone: str,
        interval_seconds: float = POLL_SECONDS,
    ) -> None:
        """Waits until starting children are ready. Raises Failed, with the end of a log, if one dies or time is up."""
        deadline = time.monotonic() + timeout_seconds
        while not is_ready():
            for child in children:
                if not child.is_running:
                    raise Failed(f"{exit_text(child)} before {milestone}.{end_of_log(child.program.log)}")
            if time.monotonic() > deadline:
                raise Failed(
                    f"gave up after {timeout_seconds:g} s, before {milestone}.{end_of_log(children[-1].program.log)}"
                )
            self.pause(interval_seconds)

    def pause(self, seconds: float = POLL_SECONDS) -> None:
        if self._stop.is_requested:
            raise Stopped
        time.sleep(seconds)

    def keep_running(self) -> None:
        """Restarts children that die, until the launcher is stopped. Raises Failed if a child keeps dying."""
        while not self._stop.is_requested:
            for child in self.all:
                self._restart_if_dead(child)
            time.sleep(POLL_SECONDS)

    def _restart_if_dead(self, child: Child) -> None:
        if child.start_again_at is not None:
            if time.monotonic() >= child.start_again_at:
                child.start()
            return
        if child.is_running:
            return
        child.kill()
        if child.popen.returncode == UNUSABLE_SETTINGS:
            raise Failed(f"{exit_text(child)}.{end_of_log(child.program.log)}")
        lifetime_seconds = time.monotonic() - child.started_at
        child.quick_deaths = child.quick_deaths + 1 if lifetime_seconds < QUICK_SECONDS else 0
        if child.quick_deaths >= QUICK_DEATHS:
            log = child.program.log
            raise Failed(f"{child.program.name} died {QUICK_DEATHS} times in a row.{end_of_log(log)}")
        delay_seconds = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**child.quick_deaths)
        child.start_again_at = time.monotonic() + delay_seconds
        self._report(
            f"{exit_text(child)} after {lifetime_seconds:.0f} s; restarting in {delay_seconds:g} s "
            f"(log: {child.program.log})"
        )

    def drain(self, children: Sequence[Child]) -> None:
        """Sends SIGTERM to all of these children, and SIGKILL after their longest deadline or a second Ctrl-C."""
        for child in children:
            child.popen.send_signal(signal.SIGTERM)  # does nothing if the child has ended
        deadline = time.monotonic() + max((child.program.drain_seconds for child in children), default=0.0)
        while any(child.is_running for child in children) and not self._stop.is_immediate:
            if time.monotonic() > deadline:
                late_names = ", ".join(child.program.name for child in children if child.is_running)
                self._report(
                    f"{late_names} did not stop in time and is killed; a job continues from its last checkpoint"
                )
                break
            time.sleep(POLL_SECONDS)
        for child in children:
            child.kill()


def python(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def rotate(log: Path) -> None:
    """Renames a log that has become too large."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES:
            log.rename(log.with_name(log.name + ".1"))


def exit_text(child: Child) -> str:
    code = child.popen.returncode
    ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    return f"{child.program.name} {ending}"


def end_of_log(log: Path) -> str:
    """Returns the last lines of a log, which errors quote."""
    last_lines = log.read_text(errors="replace").splitlines()[-8:] if log.exists() else []
    return f" The end of its log {log}:\n" + "\n".join(f"    {line}" for line in last_lines)
