"""Supervises one attempt, from its grant until SQL has its last event.

`supervise` names the steps. Each step is a function on one `Attempt`, whose `phase` says which step runs. A step that
finds a reason to end the attempt only writes that reason down. `watch` then ends training, and `conclude` reports why.

The supervisor imports no torch, and blocks only in `select`. A thread of the link talks to Redis, so that training
goes on whatever happens to Redis.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import OwnCodeError
from footplate.contract.events import Kind
from footplate.contract.host import outcome
from footplate.contract.host.scratch import scratch
from footplate.contract.lifecycle import Reason, StopMode
from footplate.contract.messages import Grant, Stop
from worker.attempt.artifact_sync import ArtifactSync
from worker.attempt.attempt_state import Attempt, Phase, disk_full, event_of
from worker.attempt.exit_report import ExitFacts, crashed, exit_report
from worker.attempt.rank_process import LAST_REPORTS_SECONDS
from worker.attempt.rendezvous import NO_RENDEZVOUS
from worker.attempt.usage import Usage
from worker.identity import Node
from worker.settings import WorkerSettings
from worker.tracing import Untraced

if TYPE_CHECKING:
    from worker.tracing import Spans

log = logging.getLogger("footplate.worker")

TICK_SECONDS = 0.5
"""The longest sleep of the loop, and so the longest time between two checks of limits and of the drain notice."""
SYNC_SECONDS = 1.0
SYSTEM_SECONDS = 10.0
WARM_SECONDS = 120.0
"""The longest wait of a launch for a warm parent that is being restarted."""
LAST_SAVE_SECONDS = 60.0
"""The time for a checkpoint at a time limit."""
FROZEN_SECONDS = TICK_SECONDS + 2.0
"""A turn that took longer than this: the supervisor was frozen, and could not read what training sent."""


def supervise(
    settings: WorkerSettings,
    node: Node,
    grant: Grant,
    client: redis.Redis,
    claimed: socket.socket | None = None,
    spans: Spans | None = None,
) -> None:
    """Runs one attempt to its end. `claimed` is the socket whose address was sent with the claim."""
    attempt = Attempt(settings, node, grant, client, claimed, spans or Untraced())
    reached(Moment.AFTER_JOURNAL_MADE)
    attempt.link.start()
    try:
        # Killed processes clean nothing up. What training and its data workers leave is removed with this folder.
        with scratch(node.id) as attempt.ranks.scratch, artifact_folder(attempt):
            meet(attempt)
            fetch(attempt)
            if launch(attempt):
                reached(Moment.AFTER_LAUNCH)
                watch(attempt)
                take_back(attempt)
                hand_in(attempt)
            if not attempt.is_superseded:
                reached(Moment.AFTER_TRAINING)
                conclude(attempt)
                reached(Moment.AFTER_DONE_WRITTEN)
                deliver(attempt)
                reached(Moment.AFTER_HAND_OVER)
    finally:
        close(attempt)


# ── Before training: each of these ends early if the attempt is called off ─────────────────────────────────────────


def meet(attempt: Attempt) -> None:
    """Waits until every node of the job has claimed its part of the attempt."""
    if not attempt.rendezvous.is_open:
        attempt.spans.begin_phase("meet")
    _wait(attempt, lambda: attempt.rendezvous.is_open)
    if (unreachable := attempt.rendezvous.trouble(attempt.settings.node_name)) is not None:
        attempt.end_with(unreachable)


@contextmanager
def artifact_folder(attempt: Attempt) -> Iterator[None]:
    """Makes a folder that stands for the artifact store, if that is a bucket."""
    if (bucket := attempt.settings.bucket) is None:
        yield
        return
    with scratch(attempt.node.id, attempt.node.folder.work) as folder:
        root = attempt.ranks.root = Path(folder)
        # Training's user may pass the folder and not list it: bundles and fetched files lie there under secret names.
        root.chmod(0o711)
        attempt.sync = ArtifactSync(bucket, attempt.grant, root, attempt.wake)
        try:
            yield
        finally:
            attempt.sync.close()


def fetch(attempt: Attempt) -> None:
    """Fetches what training needs from a bucket and from a hub. A store that does not answer is waited for."""
    attempt.enter(Phase.FETCH)
    for source in (attempt.sync, attempt.hub):
        if source is None or attempt.is_called_off:
            continue
        source.fetch()
        _wait(attempt, lambda source=source: source.is_idle)  # type: ignore[misc]
        if source.failure is not None:
            attempt.end_with(outcome.of_exception(source.failure))
    attempt.receive_from_threads()


def launch(attempt: Attempt) -> bool:
    """Requests training from the warm parent. Returns False if the attempt is called off before."""
    if attempt.is_called_off:
        return False
    attempt.spans.begin_phase("launch")
    _await_user(attempt)
    attempt.enter(Phase.LAUNCH)
    try:
        if not attempt.is_called_off:
            attempt.ranks.make_folders(was_fetched=attempt.sync is not None)
    except (OSError, OwnCodeError) as error:
        attempt.end_with(outcome.of_exception(error))
    while not attempt.is_called_off:
        try:
            _start(attempt)
        except OSError:
            # The warm parent is being restarted.
            turn(attempt, 0.1)
        else:
            return True
    return False


def _await_user(attempt: Attempt) -> None:
    """Waits until training has a user that no other attempt has, if the node gives each attempt its own."""
    if attempt.ranks.has_user():
        return
    attempt.append([event_of(Kind.NOTE, {"message": "waits for a user of its own", "code": "no_free_user"})])
    while not attempt.is_called_off and not attempt.ranks.has_user():
        turn(attempt)


def _start(attempt: Attempt) -> None:
    ranks = attempt.ranks
    with attempt.rendezvous.address() if ranks.needs_rendezvous else nullcontext(NO_RENDEZVOUS) as address:
        orders = ranks.orders(address, attempt.environment, attempt.hub.folders)
        # A serving session is one process, which meets no other rank, so its socket takes the place of that socket.
        inherited = address.listening if attempt.serving is None else attempt.serving.theirs
        attempt.training.start(attempt.node.folder.run, orders, inherited, ranks.user, ranks.lock)
        if attempt.serving is not None:
            attempt.serving.start()


def _wait(attempt: Attempt, is_done: Callable[[], bool]) -> None:
    while not is_done() and not attempt.is_called_off:
        attempt.receive(TICK_SECONDS)
        _check_stops(attempt, time.monotonic())


# ── While training runs ────────────────────────────────────────────────────────────────────────────────────────────


def watch(attempt: Attempt) -> None:
    """Runs the loop until nothing of training is left, and kills training once its end is decided."""
    training = attempt.training
    while not training.is_gone:
        turn(attempt)
        if not (attempt.is_superseded or training.has_warm_parent or training.was_cancelled):
            attempt.end_with(crashed("this node's warm parent died, and training with it"))
        if attempt.has_outcome:
            training.signal(signal.SIGKILL)
    deadline = time.monotonic() + LAST_REPORTS_SECONDS
    while not training.is_read_out and time.monotonic() < deadline:
        turn(attempt, 0.1)
    training.look()


def turn(attempt: Attempt, longest: float = TICK_SECONDS) -> None:
    """Handles what has come in, and then what is due."""
    training, clocks = attempt.training, attempt.clocks
    attempt.receive(attempt.stopping.due_in(min(longest, TICK_SECONDS)))
    now = time.monotonic()
    if now - clocks.turned_at > FROZEN_SECONDS:
        training.last_event_at = now
    clocks.turned_at = now
    _check_stops(attempt, now)
    training.look()
    if attempt.verdict is None and not training.has_exited:
        _check_training(attempt, now)
    if now - clocks.synced_at >= SYNC_SECONDS:
        clocks.synced_at = now
        _sync_journal(attempt)


def _check_stops(attempt: Attempt, now: float) -> None:
    _check_drain(attempt)
    left = attempt.grant.time_left_seconds
    if left is not None and attempt.running_seconds(now) > left:
        attempt.stopping.obey(Stop(because="time_limit", mode=StopMode.CHECKPOINT, within_seconds=LAST_SAVE_SECONDS))
    attempt.stopping.look(now)


def _check_drain(attempt: Attempt) -> None:
    if attempt.node.folder.is_draining():
        within = attempt.settings.drain_seconds
        attempt.stopping.obey(Stop(because="drain", mode=StopMode.CHECKPOINT, within_seconds=within))


def _check_training(attempt: Attempt, now: float) -> None:
    training = attempt.training
    if not training.has_started:
        if attempt.phase is Phase.LAUNCH and now - attempt.since[Phase.LAUNCH] > WARM_SECONDS:
            attempt.end_with(crashed("this node's warm parent does not start anything"))
        return
    if attempt.phase is Phase.LAUNCH:
        attempt.enter(Phase.TRAIN)
    limit = _stall_seconds(attempt.grant)
    if now - training.last_event_at > limit:
        attempt.end_with(outcome.stalled(limit, training.tail()))
    _measure(attempt, now)


def _stall_seconds(grant: Grant) -> float:
    return float((grant.spec.get("resources") or {}).get("stall_limit") or 600.0)


def _measure(attempt: Attempt, now: float) -> None:
    """Records what each rank uses of its machine, every ten seconds."""
    clocks = attempt.clocks
    if not clocks.usage:
        gpus_of, ranks = attempt.ranks.gpus_of, attempt.training.ranks
        clocks.usage = [(rank.number, Usage(rank.pid, gpus_of(rank.number))) for rank in ranks if rank.pid is not None]
        clocks.measure_at = now + SYSTEM_SECONDS
    if now >= clocks.measure_at:
        clocks.measure_at = now + SYSTEM_SECONDS
        running = {"running_s": round(attempt.running_seconds(now), 3)}
        attempt.append(
            [{"rank": rank, **event_of(Kind.SYSTEM, running | usage.measure())} for rank, usage in clocks.usage]
        )


def _sync_journal(attempt: Attempt) -> None:
    try:
        attempt.journal.sync()
        attempt.journal.forget(attempt.link.acknowledged)
    except OSError as error:
        attempt.end_with(disk_full(error))


# ── After training ─────────────────────────────────────────────────────────────────────────────────────────────────


def take_back(attempt: Attempt) -> None:
    """Gives training's files back to root. If the warm parent died, the next attempt with this user does it."""
    if attempt.training.has_exited:
        attempt.ranks.take_back()


def hand_in(attempt: Attempt) -> None:
    """Copies what training left to a bucket, before anyone can see that it ended. A stop may leave no time for it."""
    attempt.enter(Phase.HAND_IN)
    sync = attempt.sync
    if sync is None or attempt.is_superseded:
        return
    sync.finish()
    while not sync.is_idle and not attempt.is_superseded:
        attempt.receive(TICK_SECONDS)
        _check_drain(attempt)
        if attempt.stopping.leaves_no_time:
            sync.give_up()
            attempt.are_outputs_lost = True
            return
    attempt.receive_from_threads()
    if sync.failure is not None:
        attempt.are_outputs_lost = True
        attempt.end_with(outcome.of_exception(sync.failure))


def conclude(attempt: Attempt) -> None:
    """Decides how the attempt ended, and appends that as `done`, the last event."""
    attempt.enter(Phase.CONCLUDE)
    facts = ExitFacts(
        grant=attempt.grant,
        world=attempt.ranks.world,
        training=attempt.training,
        verdict=attempt.verdict,
        stop=attempt.stopping.stop,
        is_draining=attempt.node.folder.is_draining(),
        are_outputs_lost=attempt.are_outputs_lost,
        oom_kills=outcome.oom_kill_count() - attempt.oom_kills_before,
    )
    running_s = round(attempt.running_seconds(time.monotonic()), 3)
    done = exit_report(facts).model_copy(update={"running_s": running_s, "had_checkpoint": attempt.had_checkpoint})
    attempt.journal.append([attempt.hidden(event_of(Kind.DONE, done.model_dump(mode="json")))], even_if_full=True)
    attempt.spans.record_outcome(done)
    # Training may have sent any text as its reason.
    reason = done.reason if done.reason in Reason.__members__.values() else Reason.ERROR
    log.info("%s attempt %s: %s (%s)", attempt.grant.job, attempt.grant.attempt, done.ending, reason)


def deliver(attempt: Attempt) -> None:
    """Waits until SQL has every event. A node that drains waits less, because its next start sends the rest."""
    attempt.enter(Phase.DELIVER)
    link, journal = attempt.link, attempt.journal
    link.is_hurried = True
    link.poke(beat=True)
    deadline: float | None = None
    while link.acknowledged < journal.last and not attempt.is_closed and not attempt.is_superseded:
        attempt.receive(TICK_SECONDS)
        if deadline is None and attempt.node.folder.is_draining():
            launched_at = attempt.since.get(Phase.LAUNCH, attempt.since[Phase.RENDEZVOUS])
            deadline = max(time.monotonic() + 2.0, launched_at + attempt.settings.drain_seconds)
        if deadline is not None and time.monotonic() > deadline:
            return
    attempt.is_delivered = True


def close(attempt: Attempt) -> None:
    """Closes every part. The journal is deleted if nobody needs it any more."""
    attempt.hub.close()
    if attempt.serving is not None:
        attempt.serving.close()
    attempt.link.close()
    attempt.spans.close()
    if attempt.is_delivered or attempt.is_superseded:
        attempt.journal.delete()
        reached(Moment.AFTER_JOURNAL_DELETED)
    else:
        attempt.journal.close()
    attempt.training.close()
    attempt.ranks.close()
    attempt.selector.close()
    os.close(attempt.wake)
