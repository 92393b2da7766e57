"""The warm parent of a node. It has imported the modules of training, and forks training processes from itself.

It also kills training processes whose supervisor has died. The kernel cannot do that with PDEATHSIG, because the
supervisor is not their parent. So every supervisor holds a connection to the warm parent, and the end of the connection
kills what the supervisor started. The warm parent itself dies with the Celery parent, by a pipe and by PDEATHSIG, and
kills all training then.

It has one thread, and runs no torch operation and no CUDA. Otherwise the processes that it forks would hang.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from pydantic import BaseModel, ValidationError

from footplate.contract.host.launch import FD_NAMES, TO_WARM, Exited, Start, Started, close_all_but, listen
from footplate.contract.host.linux import (
    PAUSE_SECONDS,
    Leftovers,
    adopt_orphans,
    die_with_parent,
    end_with_parent,
    kill_group,
    kill_user,
    uid_of,
)
from footplate.contract.host.node_folder import MAX_TROUBLE_CHARS, NodeFolder
from footplate.contract.host.oom_kills import OomCount, OomKills
from footplate.contract.host.user import NOBODY, User
from footplate.contract.import_speed import without_collecting
from footplate.runtime.import_ahead import ImportAhead, try_imports

log = logging.getLogger("footplate.warm")


@dataclass(eq=False)
class Rank:
    """One training process, which leads a session and a process group of its own."""

    number: int
    pid: int
    pidfd: int
    oom_kills_before: OomCount
    """The count at which the process was forked."""

    def kill(self, by: signal.Signals) -> None:
        # The process is also signalled by itself, because it may not have made its process group yet.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, by)
        kill_group(self.pid, by)


@dataclass(eq=False)
class Attempt:
    """The training processes that one supervisor has started."""

    supervisor: socket.socket
    uid: int = -1
    """The uid of its training processes. -1: none was started yet."""
    lock: int | None = None
    """The lock of the user, held while a process runs as this user. None: attempts may share this user."""
    ranks: list[Rank] = field(default_factory=list)
    exits: list[Exited] = field(default_factory=list)
    """Ranks that have ended, and whose exits are reported once all processes that they forked have ended."""


class WarmParent:
    """Serves the requests of supervisors, and handles exits of training processes and connections that end."""

    def __init__(self, listening: socket.socket, lifeline: int) -> None:
        self._pid = os.getpid()
        self._listening, self._lifeline = listening, lifeline
        self._attempts: dict[socket.socket, Attempt] = {}
        """The attempts whose supervisors are connected, by the connection."""
        self._ending: list[Attempt] = []
        """The attempts with ended ranks whose own children may still run."""
        self._forked: set[int] = set()
        """The processes that were forked here and not waited for yet. Adopted processes are not among them."""
        # Training processes adopt the orphans below them, so an orphan that comes here was left by an ended rank.
        self._leftovers = Leftovers(self._forked.__contains__)
        self._ahead = ImportAhead()
        self._oom_kills = OomKills()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        self._selector.register(lifeline, selectors.EVENT_READ, self._end)

    def serve(self) -> None:
        # The kernel sends SIGTERM when the Celery parent dies (PDEATHSIG), perhaps before the pipe ends.
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        while True:
            timeout = PAUSE_SECONDS if self._ending else 0.0 if self._ahead.is_due else None
            for key, _ in self._selector.select(timeout):
                key.data()
            if self._ending:
                self._report_ended()
            elif modules := self._ahead.take_untried():
                self._run_in_child(partial(try_imports, modules), partial(self._ahead.tried, modules))
            elif self._ahead.is_due:
                self._ahead.import_next()

    def describe(self, path: Path) -> None:
        """Forks a child that writes the catalogue of components."""

        def write() -> int:
            from footplate.runtime import catalogue

            catalogue.write(path)
            return 0

        def end(code: int) -> None:
            if code:
                log.error(
                    "the process that lists the components failed (exit code %s), so this node announces no components",
                    code,
                )

        self._run_in_child(write, end)

    def _run_in_child(self, work: Callable[[], int], end: Callable[[int], None]) -> None:
        """Forks a child that runs `work`, and calls `end` with its exit code."""
        pid = os.fork()
        if pid == 0:
            _become(self._pid, [1, 2], work)
        pidfd = os.pidfd_open(pid)
        self._forked.add(pid)

        def on_exit() -> None:
            self._selector.unregister(pidfd)
            os.close(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self._forked.remove(pid)
            end(code)

        self._selector.register(pidfd, selectors.EVENT_READ, on_exit)

    def _accept(self) -> None:
        supervisor, _ = self._listening.accept()
        self._attempts[supervisor] = Attempt(supervisor)
        self._selector.register(supervisor, selectors.EVENT_READ, lambda: self._receive(supervisor))

    def _receive(self, supervisor: socket.socket) -> None:
        if supervisor not in self._attempts:
            return
        attempt = self._attempts[supervisor]
        try:
            message, fds, _, _ = socket.recv_fds(supervisor, 4096, len(FD_NAMES) + 2)
        except OSError:
            message, fds = b"", []
        if not message:
            self._kill_attempt(attempt)
            return
        rank = 0
        try:
            request = TO_WARM.validate_json(message)
            if isinstance(request, Start) and len(fds) >= len(FD_NAMES):
                rank = request.rank
                self._start(attempt, request, fds)
            elif not isinstance(request, Start):
                for running in attempt.ranks:
                    running.kill(signal.Signals(request.signal))
        except ValidationError as error:
            log.error("a supervisor sent a message that is not valid: %s", error)
        except OSError as error:
            # Memory, processes or descriptors have run out. The other training processes go on.
            log.error("training cannot be started: %s", error)
            _send(supervisor, Exited(rank=rank, code=os.EX_OSERR, peak_rss_mb=0.0, never_started=str(error)))
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, attempt: Attempt, request: Start, fds: list[int]) -> None:
        forked_at = time.monotonic()
        self._ahead.want(request.libraries)
        if not attempt.ranks:
            self._take_user(attempt, request.user, fds)
        if request.user is not None and not request.user.is_shared:
            os.close(fds.pop(len(FD_NAMES)))
        oom_kills_before = self._oom_kills.unexplained()
        pid = os.fork()
        if pid == 0:
            _become(self._pid, [1, 2, *fds], lambda: _train(fds, forked_at), request.user)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._forked.add(pid)
        rank = Rank(request.rank, pid, pidfd, oom_kills_before)
        attempt.ranks.append(rank)
        self._selector.register(rank.pidfd, selectors.EVENT_READ, lambda: self._reap(attempt, rank))
        _send(attempt.supervisor, Started(rank=request.rank, pid=pid))

    def _take_user(self, attempt: Attempt, user: User | None, fds: list[int]) -> None:
        attempt.uid = os.geteuid() if user is None else user.uid
        if user is not None and not user.is_shared and attempt.lock is None:
            attempt.lock = os.dup(fds[len(FD_NAMES)])
            # Processes of an earlier attempt of this user may be left, if its warm parent was killed.
            self._kill_user(attempt)

    def _reap(self, attempt: Attempt, rank: Rank) -> None:
        """Handles the end of a training process. Its group is killed before its exit is reported."""
        self._selector.unregister(rank.pidfd)
        # Until the process is waited for, its pid is not reused.
        rank.kill(signal.SIGKILL)
        _, status, usage = os.wait4(rank.pid, 0)
        self._forked.remove(rank.pid)
        os.close(rank.pidfd)
        attempt.ranks.remove(rank)
        code = os.waitstatus_to_exitcode(status)
        is_oom_kill = code == -signal.SIGKILL and self._oom_kills.explain(rank.oom_kills_before)
        peak_rss_mb = usage.ru_maxrss / 1024
        attempt.exits.append(Exited(rank=rank.number, code=code, peak_rss_mb=peak_rss_mb, is_oom_kill=is_oom_kill))
        if attempt not in self._ending:
            self._ending.append(attempt)
        if attempt.lock is not None and not attempt.ranks:
            self._kill_user(attempt)

    def _report_ended(self) -> None:
        """Kills leftover children of ended ranks. Reports the exits of an attempt when its user has none left."""
        users = {uid_of(pid) for pid in self._leftovers.turn()}
        for attempt in [attempt for attempt in self._ending if attempt.uid not in users]:
            self._ending.remove(attempt)
            while attempt.exits:
                _send(attempt.supervisor, attempt.exits.pop(0))
            self._forget(attempt)

    def _kill_user(self, attempt: Attempt) -> None:
        kill_user(attempt.uid, NOBODY)
        # `kill_user` changes this process's user, which clears PDEATHSIG. If the parent dies in between, the pipe ends.
        end_with_parent(signal.SIGTERM)

    def _kill_attempt(self, attempt: Attempt) -> None:
        """Kills all that a supervisor started, after its connection has ended for any reason."""
        del self._attempts[attempt.supervisor]
        for rank in attempt.ranks:
            rank.kill(signal.SIGKILL)
        self._selector.unregister(attempt.supervisor)
        attempt.supervisor.close()
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        """Unlocks the attempt's user if the attempt is over, so that another attempt can use it."""
        is_over = attempt.supervisor not in self._attempts and not attempt.ranks and attempt not in self._ending
        if is_over and attempt.lock is not None:
            os.close(attempt.lock)
            attempt.lock = None

    def _end(self) -> None:
        if os.getresuid()[2] == 0:
            # If a signal has interrupted `kill_user`, this process still has the rights of another user.
            os.setresuid(0, 0, 0)
        for attempt in {*self._attempts.values(), *self._ending}:
            for rank in attempt.ranks:
                rank.kill(signal.SIGKILL)
            if attempt.lock is not None:
                kill_user(attempt.uid, NOBODY)
        # This is last, because processes that left their group are adopted only after their parents have died.
        self._forked.clear()
        self._leftovers.end()
        os._exit(0)


def _send(supervisor: socket.socket, message: BaseModel) -> None:
    # The end of a supervisor is noticed when its connection closes, not here.
    with suppress(OSError):
        supervisor.send(message.model_dump_json().encode(), socket.MSG_DONTWAIT)


def _become(warm: int, descriptors: list[int], work: Callable[[], int], user: User | None = None) -> NoReturn:
    """Turns a forked child into a process that runs `work` as this user, with these descriptors and an empty stdin."""
    code = 70
    try:
        die_with_parent(warm)
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        close_all_but(descriptors)
        os.open(os.devnull, os.O_RDONLY)
        if user is not None:
            user.become()
            die_with_parent(warm)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # os._exit skips the interpreter's teardown, where threads and atexit hooks of training could hang.
        os._exit(code)


def _train(fds: list[int], forked_at: float) -> int:
    from footplate.runtime import run

    adopt_orphans()
    order, events, stop, stdout, stderr, *inherited = fds
    for fd, number in ((stdout, 1), (stderr, 2)):
        os.dup2(fd, number)
        os.close(fd)
    return run.main(order, events, stop, forked_at, *inherited)


def preload() -> None:
    """Imports what every training process needs. torch._dynamo alone takes 1.8 s."""
    with without_collecting():
        import accelerate  # noqa: F401
        import torch._dynamo  # noqa: F401

        from footplate.runtime import build, run  # noqa: F401

        build.preload()
        gc.collect()
        # The imported objects are never garbage. Without the freeze, each child's collector would copy their pages.
        gc.freeze()


def main() -> None:
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    node_folder = NodeFolder(folder.parent)
    start = time.monotonic()
    try:
        preload()
        if (threads := len(os.listdir("/proc/self/task"))) != 1:
            raise RuntimeError(f"{threads} threads run after the imports, and forked processes would hang")
    except BaseException as error:
        _give_up(node_folder, f"training cannot be imported here: {type(error).__name__}: {error}")
        raise
    # The warm parent listens only after its imports. If it listened before and an import failed, a supervisor that had
    # connected would report a crashed attempt.
    warm = WarmParent(listen(folder), lifeline)
    node_folder.be_ready()
    log.info("the warm parent is ready after %.1f s", time.monotonic() - start)
    warm.describe(node_folder.catalogue)
    warm.serve()


def _give_up(node_folder: NodeFolder, why: str) -> None:
    """Stores the reason why training cannot start here, which the node's heartbeats report.

    Exits if the reason is the same as at the last start, so that the log does not repeat the traceback.
    """
    is_repeated = node_folder.why_not_ready() == why[:MAX_TROUBLE_CHARS]
    node_folder.be_in_trouble(why)
    if is_repeated:
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
