"""Owns one attempt, from its grant until SQL has its last event. Imports no torch; waits for nobody but in `select`.

    meet        of a job on several nodes: waits until each of them has claimed its part
    fetch       where the artifact store is a bucket: what training needs of it (shipping.py);
                and what it needs of a hub (hub.py)
    launch      the warm parent forks training
    watch       what it says goes into the journal; what ends it: control, a drain, its limits
    hand in     and what it leaves, to that bucket
    conclude    why it ended becomes `done`
    hand over   the link sends what is left, until it is acknowledged

A thread of the link's own talks to Redis. Whatever happens to Redis, training goes on.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import redis

from footplate.contract.crash_points import Moment, reached
from footplate.contract.environment import Hidden
from footplate.contract.errors import InvalidSpec, OwnCodeError
from footplate.contract.events import DoneData, Kind, now_text
from footplate.contract.host import outcome
from footplate.contract.host.environment import asked_for
from footplate.contract.host.outcome import Verdict
from footplate.contract.host.scratch import scratch
from footplate.contract.lifecycle import Reason, StopMode
from footplate.contract.messages import AttemptReply, Deed, Grant, Stop
from worker.attempt.artifact_sync import Shipping
from worker.attempt.control_link import Link
from worker.attempt.exit_report import Seen, crashed, how_it_ended
from worker.attempt.journal import Header, Journal, JournalFull
from worker.attempt.local_ranks import Part
from worker.attempt.prefetch import HubFetch
from worker.attempt.rank_process import LAST_WORDS_SECONDS, Events
from worker.attempt.rendezvous import NOWHERE, Meeting
from worker.attempt.stopping import Stopping
from worker.attempt.training_processes import Training
from worker.attempt.usage import Usage
from worker.identity import Node
from worker.settings import WorkerSettings
from worker.tracing import Untraced

log = logging.getLogger("footplate.worker")

TICK_SECONDS = 0.5
"""How long the loop sleeps at most: limits and the drain notice are looked at so often."""
SYNC_SECONDS = 1.0
SYSTEM_SECONDS = 10.0
WARM_SECONDS = 120.0
"""How long a launch waits for a warm parent that is being restarted."""
LAST_SAVE_SECONDS = 60.0
"""For the checkpoint at a time limit."""


class Supervisor:
    """One attempt."""

    def __init__(
        self,
        settings: WorkerSettings,
        node: Node,
        grant: Grant,
        client: redis.Redis,
        meeting: socket.socket | None = None,
        spans: Untraced | None = None,
    ) -> None:
        """`meeting` is where the ranks of several nodes can meet on this one: bound, and told with the claim."""
        self._meeting = Meeting(grant, meeting)
        self._spans = spans or Untraced()
        self._settings, self._node, self._places, self._grant = settings, node, node.places, grant
        self._started = self._turned_at = self._synced_at = time.monotonic()
        self._system_at = 0.0
        self._verdict: Verdict | None = None
        """Why we ended it, where nobody told us to stop."""
        self._shipping: Shipping | None = None
        self._is_left_behind = False
        """Training finished, and what it leaves could not be handed in."""
        self._is_superseded = self._is_closed = self._is_delivered = False
        self._had_checkpoint = False
        self._runs_since: float | None = None
        """When training said that it runs: from there on a time limit counts, as it does for control."""
        self._oom_kills = outcome.oom_kill_count()
        self._usage: list[tuple[int, Usage]] = []
        self._part = Part(settings, node, grant)
        self._stall_seconds = float((grant.spec.get("resources") or {}).get("stall_limit") or 600.0)
        secrets = {name: self._node.secrets.get(name, "") for name in grant.spec.get("secrets") or []}
        # Training does not get the node's own, and a file of the node's user may hold it as well.
        self._hidden = Hidden([*secrets.values(), os.environ.get("HF_TOKEN", "")])
        self._asked_for = self._environment()
        self._journal = self._new_journal()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._hub = HubFetch(settings, grant, self._wake, is_for_another_user=node.rights.is_given_up)
        self._link = Link(client, grant, self._journal, self._wake)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, self._hear_control)
        self._training = Training(self._selector, self._write)
        self._stopping = Stopping(self._training)

    def run(self) -> None:
        reached(Moment.AFTER_JOURNAL_MADE)
        self._link.start()
        try:
            # Killed processes tidy nothing up: what training, and its data workers, leave lying about goes with this.
            with scratch(self._node.id) as self._part.scratch, self._workplace():
                if self._meet() and self._fetch() and self._launch():
                    reached(Moment.AFTER_LAUNCH)
                    self._watch()
                    self._take_back()
                    self._hand_in()
                if not self._is_superseded:
                    reached(Moment.AFTER_TRAINING)
                    self._conclude()
                    reached(Moment.AFTER_DONE_WRITTEN)
                    self._hand_over()
                    reached(Moment.AFTER_HAND_OVER)
        finally:
            self._close()

    # Meet

    def _meet(self) -> bool:
        """Whether there is something to launch: not where the others do not come. Nothing of training exists yet."""
        if not self._meeting.is_open:
            self._spans.begins("meet")
        while not self._meeting.is_open and not self._is_called_off:
            self._hear(TICK_SECONDS)
            self._look_for_stops(time.monotonic())
        self._verdict = self._verdict or self._meeting.trouble(self._settings.node_name)
        self._started = time.monotonic()
        return not self._is_called_off

    # Fetch

    @contextmanager
    def _workplace(self) -> Iterator[None]:
        """Where artifacts lie for this attempt: in the store itself, or beside a bucket, where all of it goes."""
        if (bucket := self._settings.bucket) is None:
            yield
            return
        with scratch(self._node.id, self._places.work) as folder:
            root = self._part.root = Path(folder)
            # Its own lies in it, and so do the bundle and the files that were fetched. Nobody else knows its name.
            root.chmod(0o711)
            self._shipping = Shipping(bucket, self._grant, root, self._wake)
            try:
                yield
            finally:
                self._shipping.close()

    def _fetch(self) -> bool:
        """Whether there is something to launch. Who is away is waited for, as long as nobody stops it."""
        for fetching in (self._shipping, self._hub):
            if fetching is None or self._is_called_off:
                continue
            fetching.fetch()
            while not fetching.is_idle and not self._is_called_off:
                self._hear(TICK_SECONDS)
                self._look_for_stops(time.monotonic())
            if fetching.failure is not None:
                self._end_with(outcome.of_exception(fetching.failure))
        self._hear_control()
        self._started = time.monotonic()
        return not self._is_called_off

    @property
    def _is_called_off(self) -> bool:
        return self._is_superseded or self._stopping.stop is not None or self._verdict is not None

    # Launch

    def _environment(self) -> dict[str, str]:
        try:
            settings, node = self._settings, self._node
            return asked_for(self._grant.spec, settings.env_allowed, node.secrets, node.places.root, node.rights.user)
        except InvalidSpec as error:
            self._verdict = outcome.of_ours(error, Reason.NOT_BUILDABLE)
            return {}

    def _new_journal(self) -> Journal:
        grant = self._grant
        header = Header(grant.job, grant.attempt, grant.fence, grant.claim, grant.source)
        try:
            return Journal.create(self._places.journals, header, self._settings.journal_max_mb)
        except OSError as error:
            self._verdict = _disk_full(error)
            return Journal.in_memory(header, self._settings.journal_max_mb)

    def _launch(self) -> bool:
        """Whether training was asked for. It is not where a stop comes first, or the warm parent never does."""
        self._spans.begins("launch")
        self._await_user()
        self._make_room()
        while not self._is_called_off:
            try:
                self._start()
            except OSError:
                # It is being started again.
                self._turn(0.1)
            else:
                return True
        return False

    def _await_user(self) -> None:
        """Until training has a user that no other attempt has, if it is to have one."""
        is_said = False
        while not self._is_called_off and not self._part.has_user():
            if not is_said:
                self._keep([_event(Kind.NOTE, {"message": "waits for a user of its own", "code": "no_free_user"})])
                is_said = True
            self._turn()
        self._started = time.monotonic()

    def _make_room(self) -> None:
        if self._is_called_off:
            return
        try:
            self._part.make_room(was_fetched=self._shipping is not None)
        except (OSError, OwnCodeError) as error:
            self._end_with(outcome.of_exception(error))

    def _start(self) -> None:
        part = self._part
        with self._meeting.place() if part.meets else nullcontext(NOWHERE) as place:
            orders = part.orders(place, self._asked_for, self._hub.folders)
            self._training.start(self._places.run, orders, place.listening, part.user, part.lock)

    # Watch

    def _watch(self) -> None:
        training = self._training
        while not training.is_gone:
            self._turn()
            if self._is_superseded:
                training.signal(signal.SIGKILL)
            elif not training.has_guardian and not training.was_let_go:
                self._end_with(crashed("this node's warm parent died, and training with it"))
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while not training.is_heard_out and time.monotonic() < deadline:
            self._turn(0.1)
        training.look()

    def _turn(self, longest: float = TICK_SECONDS) -> None:
        """One turn of the loop: what came, then what is due."""
        self._hear(self._stopping.due_in(min(longest, TICK_SECONDS)))
        now = time.monotonic()
        if now - self._turned_at > TICK_SECONDS + 2.0:
            # We were frozen, not training.
            self._training.heard_at = now
        self._turned_at = now
        self._look_for_stops(now)
        self._training.look()
        if self._verdict is None and not self._training.has_exited:
            self._look_at_training(now)
        if now - self._synced_at >= SYNC_SECONDS:
            self._synced_at = now
            self._keep_journal()

    def _hear(self, longest: float) -> None:
        self._link.turned()
        for key, _ in self._selector.select(longest):
            key.data()

    def _look_for_stops(self, now: float) -> None:
        self._look_for_a_drain()
        left = self._grant.time_left_seconds
        if left is not None and self._running_seconds(now) > left:
            self._stopping.obey(Stop(because="time_limit", mode=StopMode.CHECKPOINT, within_seconds=LAST_SAVE_SECONDS))
        self._stopping.look(now)

    def _look_for_a_drain(self) -> None:
        if self._places.is_draining():
            within = self._settings.drain_seconds
            self._stopping.obey(Stop(because="drain", mode=StopMode.CHECKPOINT, within_seconds=within))

    def _look_at_training(self, now: float) -> None:
        training = self._training
        if not training.has_started:
            if now - self._started > WARM_SECONDS:
                self._end_with(crashed("this node's warm parent does not start anything"))
            return
        if now - training.heard_at > self._stall_seconds:
            self._end_with(outcome.stalled(self._stall_seconds, training.tail()))
        if not self._usage:
            self._usage, self._system_at = self._usage_of_each(), now + SYSTEM_SECONDS
        if now >= self._system_at:
            self._system_at = now + SYSTEM_SECONDS
            ran = {"running_s": round(self._running_seconds(now), 3)}
            self._write([{"rank": rank, **_event(Kind.SYSTEM, ran | each.look())} for rank, each in self._usage])

    def _usage_of_each(self) -> list[tuple[int, Usage]]:
        gpus_of = self._part.gpus_of
        return [
            (one.number, Usage(one.pid, gpus_of(one.number))) for one in self._training.ranks if one.pid is not None
        ]

    def _end_with(self, verdict: Verdict) -> None:
        self._verdict = self._verdict or verdict
        self._training.signal(signal.SIGKILL)

    # What comes

    def _write(self, events: Events) -> None:
        """What training says."""
        self._keep(events if self._shipping is None else self._shipping.hold(events))

    def _keep(self, events: Events) -> None:
        if not events or self._is_superseded or self._journal.is_done:
            # `done` is the last: what is said after it, by a child that ran away, would wait for ever.
            return
        try:
            self._journal.append(self._hidden(events))
        except JournalFull as error:
            self._end_with(outcome.of_ours(error, Reason.JOURNAL_FULL))
            return
        self._spans.heard(events)
        self._link.poke(beat=self._notices_news(events))

    def _notices_news(self, events: Events) -> bool:
        """Whether control should hear at once."""
        was_running = self._runs_since is not None
        for event in events:
            if event["kind"] == Kind.CHECKPOINT and event["data"].get("status") == "committed":
                self._had_checkpoint = True
            if event["kind"] == Kind.STATE and self._runs_since is None:
                self._runs_since = time.monotonic()
        return self._runs_since is not None and not was_running

    def _running_seconds(self, now: float) -> float:
        return 0.0 if self._runs_since is None else now - self._runs_since

    def _keep_journal(self) -> None:
        try:
            self._journal.sync()
            self._journal.forget(self._link.acknowledged)
        except OSError as error:
            self._end_with(_disk_full(error))

    def _hear_control(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for told in (self._hub.told, *([self._shipping.told] if self._shipping else [])):
            while not told.empty():
                self._keep([told.get()])
        while not self._link.replies.empty():
            self._take_reply(self._link.replies.get())
        while not self._link.outages.empty():
            self._write([_outage(self._link.outages.get())])

    def _take_reply(self, reply: AttemptReply) -> None:
        self._is_closed = self._is_closed or reply.closed
        if reply.superseded or (reply.closed and not self._journal.is_done):
            self._is_superseded = True
            return
        self._meeting.hear(reply.meets_at)
        if reply.stored_step is not None:
            self._training.tell_stored(reply.stored_step)
        for deed in reply.deeds:
            self._take_deed(deed)
        if reply.held_steps is not None:
            self._training.tell_held(reply.held_steps)
        if reply.stop is not None:
            self._stopping.obey(reply.stop)

    def _take_deed(self, deed: Deed) -> None:
        """It comes with every beat until control has heard that it came, and until then is the same one."""
        if deed.no > self._link.deeds:
            self._training.tell_deed(deed)
            self._link.deeds = deed.no

    def _take_back(self) -> None:
        """Once nothing of training runs. If the warm parent died, whoever has this user next does it."""
        if self._training.has_exited:
            self._part.take_back()

    # Hand in

    def _hand_in(self) -> None:
        """Before anybody hears how it ended, the store has what it leaves; unless there is no more time for that."""
        shipping = self._shipping
        if shipping is None or self._is_superseded:
            return
        shipping.finish()
        while not shipping.is_idle and not self._is_superseded:
            self._hear(TICK_SECONDS)
            self._look_for_a_drain()
            if self._stopping.leaves_no_time:
                shipping.give_up()
                self._is_left_behind = True
                return
        self._hear_control()
        if shipping.failure is not None:
            self._is_left_behind = True
            self._verdict = self._verdict or outcome.of_exception(shipping.failure)

    # Conclude

    def _conclude(self) -> None:
        running_s = round(self._running_seconds(time.monotonic()), 3)
        known = {"running_s": running_s, "had_checkpoint": self._had_checkpoint}
        done = self._how_it_ended().model_copy(update=known)
        self._journal.append([self._hidden(_event(Kind.DONE, done.model_dump(mode="json")))], even_if_full=True)
        self._spans.ends(done)
        # Training may have sent any text as its reason.
        reason = done.reason if done.reason in Reason.__members__.values() else Reason.ERROR
        log.info("%s attempt %s: %s (%s)", self._grant.job, self._grant.attempt, done.ending, reason)

    def _how_it_ended(self) -> DoneData:
        return how_it_ended(
            Seen(
                grant=self._grant,
                world=self._part.world,
                training=self._training,
                verdict=self._verdict,
                stop=self._stopping.stop,
                is_draining=self._places.is_draining(),
                is_left_behind=self._is_left_behind,
                oom_kills=outcome.oom_kill_count() - self._oom_kills,
            )
        )

    # Hand over

    def _hand_over(self) -> None:
        """Lives until everything is acknowledged; when the node goes away first, its next start sends the rest."""
        self._link.is_hurried = True
        self._link.poke(beat=True)
        deadline: float | None = None
        while self._link.acknowledged < self._journal.last and not self._is_closed and not self._is_superseded:
            self._hear(TICK_SECONDS)
            if deadline is None and self._places.is_draining():
                deadline = max(time.monotonic() + 2.0, self._started + self._settings.drain_seconds)
            if deadline is not None and time.monotonic() > deadline:
                return
        self._is_delivered = True

    def _close(self) -> None:
        self._hub.close()
        self._link.close()
        self._spans.close()
        if self._is_delivered or self._is_superseded:
            self._journal.delete()
            reached(Moment.AFTER_JOURNAL_DELETED)
        else:
            self._journal.close()
        self._training.close()
        self._part.close()
        self._selector.close()
        os.close(self._wake)


def _event(kind: Kind, data: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "at": now_text(), "data": data}


def _outage(seconds: float) -> dict[str, Any]:
    text = f"Redis did not answer for {seconds:.0f} s: what was said meanwhile waited on the node's disk, and comes now"
    return _event(Kind.NOTE, {"message": text, "code": "redis_away", "seconds": round(seconds, 1)})


def _disk_full(error: OSError) -> Verdict:
    return outcome.of_ours(JournalFull.of(error), Reason.JOURNAL_FULL)
