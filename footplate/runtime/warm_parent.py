"""The warm parent: one per node. It has imported what training imports, run none of it, and forks training from that.

It is also the guardian. PDEATHSIG follows the thread that forked, so training cannot be made to die with its supervisor
by the kernel: instead every supervisor holds a connection here, and its end kills what that supervisor had started. The
warm parent in turn dies with the Celery parent, by a pipe that ends and by PDEATHSIG, and takes all training along.

One thread, no torch operation, no CUDA: whoever is forked from a process that has run either hangs sooner or later.
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
from footplate.contract.host.node_folder import MAX_TROUBLE_CHARS, Places
from footplate.contract.host.user import NOBODY, User
from footplate.contract.import_speed import without_collecting

log = logging.getLogger("footplate.warm")


@dataclass(eq=False)
class Rank:
    """One training process: the head of its own session and group."""

    number: int
    pid: int
    pidfd: int

    def kill(self, by: signal.Signals) -> None:
        # The head by itself as well: it may not have made its group yet.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, by)
        kill_group(self.pid, by)


@dataclass(eq=False)
class Attempt:
    """What one supervisor has started here."""

    supervisor: socket.socket
    uid: int = -1
    """Who its processes run as. -1: none was started yet."""
    lock: int | None = None
    """Held as long as a process runs as this user, if no other attempt may. None: others may run as this user too."""
    ranks: list[Rank] = field(default_factory=list)
    ended: list[Exited] = field(default_factory=list)
    """Ranks whose exits are reported once nothing is left of what they forked."""


class Warm:
    """A loop over requests, exits and lifelines."""

    def __init__(self, listening: socket.socket, lifeline: int) -> None:
        self._pid = os.getpid()
        self._listening, self._lifeline = listening, lifeline
        self._attempts: dict[socket.socket, Attempt] = {}
        """By the connections of their supervisors, as long as those are there."""
        self._ending: list[Attempt] = []
        """Some of their ranks have ended, and what these have forked may still be there."""
        self._forked: set[int] = set()
        """Those of our children that we did not adopt, until they are waited for."""
        # Training adopts the orphans below it, so whoever comes to us was left by a rank that has ended.
        self._leftovers = Leftovers(self._forked.__contains__)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        self._selector.register(lifeline, selectors.EVENT_READ, self._end)

    def serve(self) -> None:
        # PDEATHSIG, where the pipe did not come first.
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        while True:
            for key, _ in self._selector.select(PAUSE_SECONDS if self._ending else None):
                key.data()
            if self._ending:
                self._end_what_is_left()

    def describe(self, path: Path) -> None:
        """Has a child write down what every registered component takes."""
        pid = os.fork()
        if pid == 0:
            _become(self._pid, [1, 2], lambda: _describe(path))
        pidfd = os.pidfd_open(pid)
        self._forked.add(pid)
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._described(pid, pidfd))

    def _described(self, pid: int, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            log.error("the child that describes the components ended with %s: this node announces none", code)
        self._forked.remove(pid)

    def _accept(self) -> None:
        supervisor, _ = self._listening.accept()
        self._attempts[supervisor] = Attempt(supervisor)
        self._selector.register(supervisor, selectors.EVENT_READ, lambda: self._hear(supervisor))

    def _hear(self, supervisor: socket.socket) -> None:
        if supervisor not in self._attempts:
            return
        attempt = self._attempts[supervisor]
        try:
            message, fds, _, _ = socket.recv_fds(supervisor, 4096, len(FD_NAMES) + 2)
        except OSError:
            message, fds = b"", []
        if not message:
            self._bury(attempt)
            return
        rank = 0
        try:
            request = TO_WARM.validate_json(message)
            if isinstance(request, Start) and len(fds) >= len(FD_NAMES):
                rank = request.rank
                self._start(attempt, request, fds)
            elif not isinstance(request, Start):
                for each in attempt.ranks:
                    each.kill(signal.Signals(request.signal))
        except ValidationError as error:
            log.error("a supervisor said what nobody understands: %s", error)
        except OSError as error:
            # No memory, no process, no descriptor left for one more: that is no reason to end the others.
            log.error("training cannot be started: %s", error)
            _tell(supervisor, Exited(rank=rank, code=os.EX_OSERR, peak_rss_mb=0.0, never_started=str(error)))
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, attempt: Attempt, asked: Start, fds: list[int]) -> None:
        forked_at = time.monotonic()
        if not attempt.ranks:
            self._take_user(attempt, asked.user, fds)
        if asked.user is not None and not asked.user.is_shared:
            os.close(fds.pop(len(FD_NAMES)))
        pid = os.fork()
        if pid == 0:
            _become(self._pid, [1, 2, *fds], lambda: _train(fds, forked_at), asked.user)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._forked.add(pid)
        rank = Rank(asked.rank, pid, pidfd)
        attempt.ranks.append(rank)
        self._selector.register(rank.pidfd, selectors.EVENT_READ, lambda: self._reap(attempt, rank))
        _tell(attempt.supervisor, Started(rank=asked.rank, pid=pid))

    def _take_user(self, attempt: Attempt, user: User | None, fds: list[int]) -> None:
        attempt.uid = os.geteuid() if user is None else user.uid
        if user is not None and not user.is_shared and attempt.lock is None:
            attempt.lock = os.dup(fds[len(FD_NAMES)])
            # Of an attempt that had this user before, under a warm parent that was killed.
            self._kill_user(attempt)

    def _reap(self, attempt: Attempt, rank: Rank) -> None:
        """The head is gone: so is its group, and all that it forked, before anyone hears of it."""
        self._selector.unregister(rank.pidfd)
        # Until it is waited for, its number belongs to nobody else.
        rank.kill(signal.SIGKILL)
        _, status, usage = os.wait4(rank.pid, 0)
        self._forked.remove(rank.pid)
        os.close(rank.pidfd)
        attempt.ranks.remove(rank)
        code = os.waitstatus_to_exitcode(status)
        attempt.ended.append(Exited(rank=rank.number, code=code, peak_rss_mb=usage.ru_maxrss / 1024))
        if attempt not in self._ending:
            self._ending.append(attempt)
        if attempt.lock is not None and not attempt.ranks:
            self._kill_user(attempt)

    def _end_what_is_left(self) -> None:
        """One turn over what ended ranks have forked. Supervisors hear of an end once nothing of it is left."""
        users = {uid_of(pid) for pid in self._leftovers.turn()}
        for attempt in [each for each in self._ending if each.uid not in users]:
            self._ending.remove(attempt)
            while attempt.ended:
                _tell(attempt.supervisor, attempt.ended.pop(0))
            self._forget(attempt)

    def _kill_user(self, attempt: Attempt) -> None:
        kill_user(attempt.uid, NOBODY)
        # Whether the parent still lives says the lifeline.
        end_with_parent(signal.SIGTERM)

    def _bury(self, attempt: Attempt) -> None:
        """A supervisor is gone, whatever the reason: nothing that it started may go on."""
        del self._attempts[attempt.supervisor]
        for rank in attempt.ranks:
            rank.kill(signal.SIGKILL)
        self._selector.unregister(attempt.supervisor)
        attempt.supervisor.close()
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        """Its user may be another attempt's, once nothing runs as this user and nobody can start it."""
        is_over = attempt.supervisor not in self._attempts and not attempt.ranks and attempt not in self._ending
        if is_over and attempt.lock is not None:
            os.close(attempt.lock)
            attempt.lock = None

    def _end(self) -> None:
        if os.getresuid()[2] == 0:
            # A signal may have come in the midst of `kill_user`.
            os.setresuid(0, 0, 0)
        for attempt in {*self._attempts.values(), *self._ending}:
            for rank in attempt.ranks:
                rank.kill(signal.SIGKILL)
            if attempt.lock is not None:
                kill_user(attempt.uid, NOBODY)
        # Last, so that who ran away from his group has come to us.
        self._forked.clear()
        self._leftovers.end()
        os._exit(0)


def _tell(supervisor: socket.socket, message: BaseModel) -> None:
    # One that is gone is noticed by its lifeline.
    with suppress(OSError):
        supervisor.send(message.model_dump_json().encode(), socket.MSG_DONTWAIT)


def _become(warm: int, kept: list[int], work: Callable[[], int], user: User | None = None) -> NoReturn:
    """The rest of a child's life: `work`, with these descriptors and an empty stdin, as this user."""
    code = 70
    try:
        die_with_parent(warm)
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        close_all_but(kept)
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
        # No interpreter teardown: what is left of training's threads and atexit hooks could hang here for ever.
        os._exit(code)


def _train(fds: list[int], forked_at: float) -> int:
    from footplate.runtime import run

    adopt_orphans()
    order, events, stop, stdout, stderr, *meeting = fds
    for fd, number in ((stdout, 1), (stderr, 2)):
        os.dup2(fd, number)
        os.close(fd)
    return run.main(order, events, stop, forked_at, *meeting)


def _describe(path: Path) -> int:
    from footplate.runtime import catalogue

    catalogue.write(path)
    return 0


def preload() -> None:
    """Imports what every training process needs. torch._dynamo alone would cost each of them 1.8 seconds."""
    with without_collecting():
        import accelerate  # noqa: F401
        import torch._dynamo  # noqa: F401

        from footplate.runtime import build, run  # noqa: F401

        build.preload()
        gc.collect()
        # What is here now lives for ever: no child's collector shall touch, and so copy, its pages.
        gc.freeze()


def main() -> None:
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    places = Places(folder.parent)
    started = time.monotonic()
    try:
        preload()
        require_one_thread()
    except BaseException as error:
        _give_up(places, f"training cannot be imported here: {type(error).__name__}: {error}")
        raise
    # Not before: who had connected to one that cannot import would take its attempt for crashed.
    warm = Warm(listen(folder), lifeline)
    places.be_ready()
    log.info("warm after %.1f s", time.monotonic() - started)
    warm.describe(places.catalogue)
    warm.serve()


def require_one_thread() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads run after the imports, and what is forked beside threads would hang")


def _give_up(places: Places, why: str) -> None:
    """Where it is as the last time, nothing is said twice: the keeper's line tells that it is."""
    was_said = places.why_not_ready() == why[:MAX_TROUBLE_CHARS]
    places.be_in_trouble(why)
    if was_said:
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
