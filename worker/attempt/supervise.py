"""Supervises one attempt, from its grant until SQL has its last event.

`STEPS` lists the steps. Each step is a function on one `Attempt`, whose `phase` names the current step. A step that
detects a failure only sets `Attempt.verdict`. The other steps before training are then skipped, `watch` ends training,
and `conclude` reports the failure.

The supervisor imports no torch. Its loop waits in `select`, and for the disk when the journal is synced. Only the
thread in `control_link.py` waits for Redis, so that training goes on without Redis.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import OwnCodeError
from footplate.contract.events import Kind
from footplate.contract.host import outcome
from footplate.contract.host.launch import libraries_of
from footplate.contract.host.scratch import scratch, temporary
from footplate.contract.lifecycle import Reason, StopMode
from footplate.contract.messages import Grant, Stop
from worker.attempt.artifact_sync import ArtifactSync
from worker.attempt.attempt_state import Attempt, Phase, disk_full, event_of
from worker.attempt.exit_report import crashed, exit_report
from worker.attempt.rank_process import LAST_REPORTS_SECONDS
from worker.attempt.rendezvous import NO_RENDEZVOUS
from worker.attempt.usage import Usage
from worker.identity import Node
from worker.settings import WorkerSettings

if TYPE_CHECKING:
    from worker.tracing import Spans

log = logging.getLogger("footplate.worker")

TICK_SECONDS = 0.5
"""The longest sleep of the loop, and so the longest time between two checks of time limits and of a drain."""
SYNC_SECONDS = 1.0
SYSTEM_SECONDS = 10.0
WARM_SECONDS = 120.0
"""The longest wait of a launch for a warm parent that is being restarted."""
LAST_SAVE_SECONDS = 60.0
"""The time that training has for its last checkpoint when it reaches the job's time limit."""
FROZEN_SECONDS = TICK_SECONDS + 2.0
"""A longer turn of the loop means that the supervisor was frozen meanwhile, and could not read training's events."""


def supervise(
    settings: WorkerSettings, node: Node, grant: Grant, client: redis.Redis, claim_socket: socket.socket | None,
    spans: Spans,
) -> None:  # fmt: skip
    """Runs one attempt to its end. `claim_socket` is the socket whose address was sent with the claim."""
    attempt = Attempt(settings, node, grant, client, claim_socket, spans)
    reached(Moment.AFTER_JOURNAL_MADE)
    attempt.link.start()
    try:
        with working_folders(attempt):
            for phase, step in STEPS.items():
                if attempt.needs(phase):
                    attempt.enter(phase)
                    try:
                        step(attempt)
                    except Exception as error:
                        fail(attempt, error)
    finally:
        close(attempt)


def fail(attempt: Attempt, error: Exception) -> None:
    """Ends training after an unexpected error in a step, and lets `conclude` report the error.

    An error in `conclude` or `deliver` is raised again. The attempt's end is decided by then, and the node's heartbeat
    thread sends what the journal still has.
    """
    if attempt.phase in (Phase.CONCLUDE, Phase.DELIVER):
        raise error
    log.error("the supervisor failed in its step %s", attempt.phase, exc_info=error)
    text = f"the node's supervisor failed in its step {attempt.phase}: {type(error).__name__}: {error}"
    attempt.end_with(crashed(f"{text}. The node's log has the traceback"))
    attempt.are_outputs_lost |= attempt.phase is Phase.UPLOAD
    try:
        if attempt.training.has_warm_parent:
            watch(attempt)
    except Exception:
        # The same error may come again at every turn. The warm parent kills training when its connection ends.
        log.exception("the supervisor cannot wait until training has ended")
        attempt.training.disconnect()
    if attempt.sync is not None and not attempt.training.has_exited:
        # Training may still change its files, and the next attempt must not continue with half of a change.
        attempt.sync.give_up()


# ── Before training. A stop or a failure ends each of these steps early ────────────────────────────────────────────


def await_nodes(attempt: Attempt) -> None:
    """Waits until every node of the job has claimed its part of the attempt."""
    if not attempt.rendezvous.is_open:
        attempt.spans.begin_phase("rendezvous")
    _wait(attempt, lambda: attempt.rendezvous.is_open)
    if (unreachable := attempt.rendezvous.trouble(attempt.settings.node_name)) is not None:
        attempt.end_with(unreachable)


@contextmanager
def working_folders(attempt: Attempt) -> Iterator[None]:
    """Makes the attempt's folders on this node. If that fails, as on a full disk, the attempt ends with the reason."""
    with ExitStack() as folders:
        try:
            # Killed processes do not clean up. The temporary files of training and its data workers are in this folder.
            attempt.ranks.scratch = folders.enter_context(scratch(attempt.node.id))
            if (bucket := attempt.settings.bucket) is not None:
                # Training uses this folder in place of the artifact store.
                root = Path(folders.enter_context(scratch(attempt.node.id, attempt.node.folder.work)))
                # Training's user must not list the folder, because the names of bundles and uploaded files are secret.
                root.chmod(0o711)
                attempt.ranks.root = root
                attempt.sync = ArtifactSync(bucket, attempt.grant, attempt.spec, root, attempt.wake)
                folders.callback(attempt.sync.close)
                if attempt.serving is not None:
                    attempt.serving.fetch_adapter = attempt.sync.fetch_adapter
        except OSError as error:
            text = f"this node cannot make a temporary folder: {error.strerror}: {error.filename or temporary()}"
            attempt.end_with(crashed(text))
        yield


def fetch(attempt: Attempt) -> None:
    """Downloads the attempt's files from the bucket, and those that the spec names on hubs and by URLs."""
    for source in (attempt.sync, attempt.fetch_thread):
        if source is None or attempt.is_called_off:
            continue
        source.fetch()
        _wait(attempt, lambda source=source: source.is_idle)  # type: ignore[misc]
        if source.failure is not None:
            attempt.end_with(outcome.of_exception(source.failure))
    attempt.receive_from_threads()


def reserve_user(attempt: Attempt) -> None:
    """Waits for a free operating-system user, if each attempt on this node runs as a user of its own."""
    attempt.spans.begin_phase("launch")
    if attempt.ranks.owner.reserve():
        return
    text = "waits, because each attempt on this node runs as a user of its own, and no user is free"
    attempt.append([event_of(Kind.NOTE, {"message": text, "code": "no_free_user"})])
    while not attempt.is_called_off and not attempt.ranks.owner.reserve():
        turn(attempt)


def launch(attempt: Attempt) -> None:
    """Makes training's folders, and starts training by the warm parent. Waits while the warm parent is restarted."""
    try:
        attempt.ranks.make_folders(was_fetched=attempt.sync is not None)
    except (OSError, OwnCodeError) as error:
        attempt.end_with(outcome.of_exception(error))
    while not (attempt.is_called_off or attempt.training.has_begun):
        try:
            _start(attempt)
        except OSError:
            turn(attempt, 0.1)
        else:
            reached(Moment.AFTER_LAUNCH)


def _start(attempt: Attempt) -> None:
    ranks = attempt.ranks
    with attempt.rendezvous.address() if ranks.needs_rendezvous else nullcontext(NO_RENDEZVOUS) as address:
        orders = ranks.orders(address, attempt.fetch_thread.folders)
        # A serving session is one process, so it needs no rendezvous, and inherits the socket of its requests instead.
        inherited_socket = address.listening if attempt.serving is None else attempt.serving.theirs
        folder, owner, libraries = attempt.node.folder.run, ranks.owner, libraries_of(attempt.spec)
        attempt.training.start(folder, orders, inherited_socket, owner.user, owner.lock, libraries)
        if attempt.serving is not None:
            attempt.serving.start()


def _wait(attempt: Attempt, is_done: Callable[[], bool]) -> None:
    while not is_done() and not attempt.is_called_off:
        attempt.receive(TICK_SECONDS)
        _check_stops(attempt, time.monotonic())


# ── While training runs ────────────────────────────────────────────────────────────────────────────────────────────


def watch(attempt: Attempt) -> None:
    """Runs the supervisor's loop until all training processes have ended. Kills them if a failure ends the attempt.

    Then makes root the owner of training's files. Only the warm parent can report that all processes have ended. If it
    died, a process may still change files, so the next attempt with the same user makes root the owner.
    """
    training = attempt.training
    while not training.is_gone:
        turn(attempt)
        if not (attempt.is_superseded or training.has_warm_parent or training.was_cancelled):
            attempt.end_with(crashed("this node's warm parent died, and training with it"))
        if attempt.is_superseded or attempt.verdict is not None:
            # Nothing that training does can change the attempt's end.
            training.signal(signal.SIGKILL)
    deadline = time.monotonic() + LAST_REPORTS_SECONDS
    while not training.is_read_out and time.monotonic() < deadline:
        turn(attempt, 0.1)
    training.check_ranks()
    if training.has_exited:
        attempt.ranks.owner.take_files_back()


def turn(attempt: Attempt, longest: float = TICK_SECONDS) -> None:
    """Makes one turn of the loop: waits for events and replies, handles them, and checks stops and limits."""
    training, clocks = attempt.training, attempt.clocks
    attempt.receive(attempt.stopping.due_in(min(longest, TICK_SECONDS)))
    now = time.monotonic()
    if now - clocks.turned_at > FROZEN_SECONDS:
        training.last_event_at = now
    clocks.turned_at = now
    _check_stops(attempt, now)
    training.check_ranks()
    if attempt.verdict is None and not training.has_exited:
        _check_training(attempt, now)
    if now - clocks.synced_at >= SYNC_SECONDS:
        clocks.synced_at = now
        try:
            attempt.journal.sync()
            attempt.journal.drop_acknowledged(attempt.link.acknowledged)
        except OSError as error:
            attempt.end_with(disk_full(error))


def _check_stops(attempt: Attempt, now: float) -> None:
    _check_drain(attempt)
    seconds_left = attempt.grant.time_left_seconds
    if seconds_left is not None and attempt.running_seconds(now) > seconds_left:
        attempt.stopping.follow(Stop(because="time_limit", mode=StopMode.CHECKPOINT, within_seconds=LAST_SAVE_SECONDS))
    attempt.stopping.send_due_signals(now)


def _check_drain(attempt: Attempt) -> None:
    if attempt.node.folder.is_draining():
        within = attempt.settings.drain_seconds
        attempt.stopping.follow(Stop(because="drain", mode=StopMode.CHECKPOINT, within_seconds=within))


def _check_training(attempt: Attempt, now: float) -> None:
    if attempt.training.has_started:
        _check_stall(attempt, now)
        _measure(attempt, now)
    elif now - attempt.since.get(Phase.LAUNCH, now) > WARM_SECONDS:
        attempt.end_with(crashed(f"this node's warm parent has not started training within {WARM_SECONDS:.0f} s"))


def _check_stall(attempt: Attempt, now: float) -> None:
    limit = attempt.spec.resources.stall_limit
    if now - attempt.training.last_event_at > limit:
        attempt.end_with(outcome.stalled(limit, attempt.training.ranks[0].tail()))


def _measure(attempt: Attempt, now: float) -> None:
    """Appends a `system` event for each rank every ten seconds, with its use of CPU, memory and GPUs."""
    clocks = attempt.clocks
    if not clocks.usage:
        gpus_of, ranks = attempt.ranks.gpus_of, attempt.training.ranks
        clocks.usage = [(rank.number, Usage(rank.pid, gpus_of(rank.number))) for rank in ranks if rank.pid is not None]
        clocks.measure_at = now + SYSTEM_SECONDS
    if now >= clocks.measure_at:
        clocks.measure_at = now + SYSTEM_SECONDS
        running_time = {"running_s": round(attempt.running_seconds(now), 3)}
        attempt.append(
            [{"rank": rank, **event_of(Kind.SYSTEM, running_time | usage.measure())} for rank, usage in clocks.usage]
        )


# ── After training ─────────────────────────────────────────────────────────────────────────────────────────────────


def upload_outputs(attempt: Attempt) -> None:
    """Uploads training's files to a bucket before its end is reported, unless a stop leaves no time for that."""
    sync = attempt.sync
    if sync is None or attempt.is_superseded:
        return
    sync.upload_outputs()
    while not sync.is_idle and not attempt.is_superseded:
        attempt.receive(TICK_SECONDS)
        _check_drain(attempt)
        if attempt.stopping.leaves_no_time:
            sync.give_up()
            attempt.receive_from_threads()
            attempt.are_outputs_lost = True
            return
    attempt.receive_from_threads()
    if sync.failure is not None:
        attempt.are_outputs_lost = True
        attempt.end_with(outcome.of_exception(sync.failure))


def conclude(attempt: Attempt) -> None:
    """Decides how the attempt ended, and appends the last event, `done`, which says so."""
    reached(Moment.AFTER_TRAINING)
    end = exit_report(attempt)
    attempt.journal.append([attempt.secret_mask(event_of(Kind.DONE, end.model_dump(mode="json")))], even_if_full=True)
    attempt.spans.record_outcome(end)
    # Users' code may have sent any text as the reason, and an unknown one must not get into the log.
    reason = end.reason if end.reason in Reason.__members__.values() else Reason.ERROR
    log.info("%s attempt %s ended: %s (%s)", attempt.grant.job, attempt.grant.attempt, end.ending, reason)
    reached(Moment.AFTER_DONE_WRITTEN)


def deliver(attempt: Attempt) -> None:
    """Waits until SQL has every event. A node that drains waits less long, because its next start sends the rest."""
    attempt.link.is_hurried = True
    attempt.link.send_now(beat=True)
    deadline: float | None = None
    while not (attempt.is_delivered or attempt.is_superseded):
        attempt.receive(TICK_SECONDS)
        if deadline is None and attempt.node.folder.is_draining():
            launched_at = attempt.since.get(Phase.LAUNCH, attempt.since[Phase.RENDEZVOUS])
            deadline = max(time.monotonic() + 2.0, launched_at + attempt.settings.drain_seconds)
        if deadline is not None and time.monotonic() > deadline:
            return
    reached(Moment.AFTER_DELIVERY)


def close(attempt: Attempt) -> None:
    """Closes all parts of the attempt. Deletes the journal if SQL has every event, or accepts none any more."""
    attempt.fetch_thread.close()
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
    attempt.ranks.owner.close()
    attempt.selector.close()
    os.close(attempt.wake)


STEPS: dict[Phase, Callable[[Attempt], None]] = {
    Phase.RENDEZVOUS: await_nodes,
    Phase.FETCH: fetch,
    Phase.RESERVE: reserve_user,
    Phase.LAUNCH: launch,
    Phase.TRAIN: watch,
    Phase.UPLOAD: upload_outputs,
    Phase.CONCLUDE: conclude,
    Phase.DELIVER: deliver,
}
"""The steps of an attempt, in their order."""
