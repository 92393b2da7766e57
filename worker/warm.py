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
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pydantic import BaseModel, ValidationError

from contract.importing import without_collecting
from worker.launch import FD_NAMES, TO_WARM, Exited, Start, Started, close_all_but, listen
from worker.linux import adopt_orphans, die_with_parent, kill_children, kill_group
from worker.node import MAX_TROUBLE_CHARS, Places
from worker.user import User

log = logging.getLogger("footplate.warm")


@dataclass(eq=False)
class Rank:
    """One training process: the head of its own session and group."""

    number: int
    pid: int
    pidfd: int
    supervisor: socket.socket

    def kill(self, by: signal.Signals) -> None:
        # The head by itself as well: it may not have made its group yet.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, by)
        kill_group(self.pid, by)


class Warm:
    """A loop over requests, exits and lifelines."""

    def __init__(self, listening: socket.socket, lifeline: int) -> None:
        self._pid = os.getpid()
        self._listening, self._lifeline = listening, lifeline
        self._ranks: dict[socket.socket, list[Rank]] = {}
        self._forked: set[int] = set()
        """Those of our children that we did not adopt, until they are waited for."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        self._selector.register(lifeline, selectors.EVENT_READ, self._end)

    def serve(self) -> None:
        # PDEATHSIG, where the pipe did not come first.
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        while True:
            for key, _ in self._selector.select():
                key.data()

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
        self._ranks[supervisor] = []
        self._selector.register(supervisor, selectors.EVENT_READ, lambda: self._hear(supervisor))

    def _hear(self, supervisor: socket.socket) -> None:
        if supervisor not in self._ranks:
            return
        try:
            message, fds, _, _ = socket.recv_fds(supervisor, 4096, len(FD_NAMES) + 1)
        except OSError:
            message, fds = b"", []
        if not message:
            self._bury(supervisor)
            return
        rank = 0
        try:
            request = TO_WARM.validate_json(message)
            if isinstance(request, Start) and len(fds) >= len(FD_NAMES):
                rank = request.rank
                self._start(supervisor, request, fds)
            elif not isinstance(request, Start):
                for each in self._ranks[supervisor]:
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

    def _start(self, supervisor: socket.socket, asked: Start, fds: list[int]) -> None:
        forked_at = time.monotonic()
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
        rank = Rank(asked.rank, pid, pidfd, supervisor)
        self._ranks[supervisor].append(rank)
        self._selector.register(rank.pidfd, selectors.EVENT_READ, lambda: self._reap(rank))
        _tell(supervisor, Started(rank=asked.rank, pid=pid))

    def _reap(self, rank: Rank) -> None:
        """The head is gone: so is its group, before anyone hears of it."""
        self._selector.unregister(rank.pidfd)
        # Until it is waited for, its number belongs to nobody else.
        rank.kill(signal.SIGKILL)
        _, status, usage = os.wait4(rank.pid, 0)
        self._forked.remove(rank.pid)
        os.close(rank.pidfd)
        if rank in self._ranks.get(rank.supervisor, []):
            self._ranks[rank.supervisor].remove(rank)
            code = os.waitstatus_to_exitcode(status)
            _tell(rank.supervisor, Exited(rank=rank.number, code=code, peak_rss_mb=usage.ru_maxrss / 1024))
        self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Training adopts the orphans below it, so whoever comes to us was left by one that is gone."""
        kill_children(lambda pid: pid not in self._forked)

    def _bury(self, supervisor: socket.socket) -> None:
        """A supervisor is gone, whatever the reason: nothing that it started may go on."""
        for rank in self._ranks.pop(supervisor):
            rank.kill(signal.SIGKILL)
        self._selector.unregister(supervisor)
        supervisor.close()

    def _end(self) -> None:
        for ranks in self._ranks.values():
            for rank in ranks:
                rank.kill(signal.SIGKILL)
        # Last, so that who ran away from his group has come to us.
        kill_children()
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
    from worker import run

    adopt_orphans()
    order, events, stop, stdout, stderr, *meeting = fds
    for fd, number in ((stdout, 1), (stderr, 2)):
        os.dup2(fd, number)
        os.close(fd)
    return run.main(order, events, stop, forked_at, *meeting)


def _describe(path: Path) -> int:
    from worker import catalogue

    catalogue.write(path)
    return 0


def preload() -> None:
    """Imports what every training process needs. torch._dynamo alone would cost each of them 1.8 seconds."""
    with without_collecting():
        import accelerate  # noqa: F401
        import torch._dynamo  # noqa: F401

        from worker import build, run  # noqa: F401

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
