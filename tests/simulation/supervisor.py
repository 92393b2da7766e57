"""One attempt on a node, with the real supervisor, control link, journal and sender."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from footplate.contract import redis_keys
from footplate.contract.events import KEPT, DoneData, Ending, Failure, Kind
from footplate.contract.lifecycle import StopMode
from footplate.contract.messages import TO_ATTEMPT, AttemptBeat, AttemptReply, Grant, Stop
from service.store.times import text_of
from tests.simulation.training import Event, Training
from tests.support.factories import WorkerEvent
from worker.attempt.control_link import Sender
from worker.attempt.journal import Journal, JournalName
from worker.redis_client import REDIS_ERRORS

if TYPE_CHECKING:
    from tests.simulation.nodes import Start

KILL_SHARE = 0.9


class Supervisor:
    def __init__(self, start: Start, grant: Grant) -> None:
        self.start, self.grant, self.world, self.node = start, grant, start.world, start.node
        railway = self.node.railway
        self.books = railway.books
        name = JournalName(**dict(grant))
        self.journal = Journal.create(self.node.folder, name, 10)
        self.sender = Sender(self.journal, grant.watermark)
        self.training = Training(self.world, railway.store, railway.plans[grant.job], grant)
        self.name = f"{self.node.name}/{self.world.name(grant.job)}.{grant.attempt}"
        self.is_over = self.is_superseded = self.is_closed = False
        self.stop: Stop | None = None
        self.waits = grant.nodes > 1 and grant.rendezvous is None
        """True while other nodes of the attempt have not claimed their parts."""
        self._kill_at = 0.0
        self._number = 0
        self._beat_at = self._synced_at = self._synced = 0.0
        self._step_at = self.world.clock + self.world.between(0.2, 1.5)
        self._began = self.world.clock
        self.books.sent_events.setdefault(grant.claim, [])
        self.world.after(0.05, self._turn)

    # Running

    def _turn(self) -> None:
        if self.is_over:
            return
        if not self.node.is_frozen:
            self._live()
        self.world.after(self.world.between(0.3, 0.9), self._turn)

    def _live(self) -> None:
        self._watch()
        try:
            self._talk()
        except REDIS_ERRORS:
            self.sender.rewind()
        if self.world.clock - self._synced_at > 1:
            self._synced_at = self.world.clock
            self.journal.sync()
            self.journal.drop_acknowledged(self.sender.acknowledged)
            self._synced = self.journal.size
        if self.is_superseded:
            self.training.is_dead = True
        if self.is_superseded or (
            self.journal.is_done and (self.sender.acknowledged >= self.journal.last or self.is_closed)
        ):
            self._let_go()

    def _watch(self) -> None:
        if self.journal.is_done or self.is_superseded:
            return
        training, now = self.training, self.world.clock
        if self.node.drains and self.stop is None:
            self._obey(Stop(because="drain", mode=StopMode.CHECKPOINT, within_seconds=5))
        if self.stop is not None and (self.waits or now >= self._kill_at):
            training.is_dead = True
        elif self.waits:
            return
        if now >= self._step_at:
            self._step_at = now + self.world.between(0.4, 1.2)
            self._write(training.turn(self.stop.mode.value if self.stop else None))
        if training.is_dead or training.outcome is not None:
            self._conclude()

    def _conclude(self) -> None:
        outcome = self._how_it_ended().model_copy(update={"running_s": round(self.world.clock - self._began, 3)})
        self.world.say(self.name, "ends: {} ({}), seq {}", outcome.ending.value, outcome.reason, self.journal.last + 1)
        self._write([(Kind.DONE, None, outcome.model_dump(mode="json"))])

    def _how_it_ended(self) -> DoneData:
        report = self.training.outcome
        if report is not None and report.ending is Ending.FINISHED:
            return report
        if self.stop is not None and (report is None or report.ending is Ending.STOPPED):
            if self.stop.because == "time_limit":
                return DoneData(ending=Ending.FAILED, reason="time_limit")
            return DoneData(ending=Ending.STOPPED, reason=self.stop.because, stop=self.stop.because)
        if report is not None:
            return report
        reason = self.training.plan.reason
        return DoneData(ending=Ending.FAILED, reason=reason, error=Failure(code=reason, message="it died"))

    def _write(self, events: list[Event]) -> None:
        if not events:
            return
        at = text_of(self.world.now_ms())
        lines = [{"kind": kind, "at": at, "step": step, "data": data} for kind, step, data in events]
        self.journal.append(lines)
        self.books.sent_events[self.grant.claim] += [(kind.value, data) for kind, _, data in events]
        if any(kind in KEPT for kind, _, _ in events):
            self._synced = self.journal.size
        for number, (kind, step, data) in enumerate(events, self.journal.last - len(events) + 1):
            WorkerEvent.model_validate({**lines[0], "seq": number, "kind": kind, "data": data})
            if kind is Kind.CHECKPOINT and data["status"] == "committed":
                self.world.say(self.name, "saves step {}, seq {}", step, number)

    # Messages from control

    def _talk(self) -> None:
        beat = self._beat() if self.world.clock >= self._beat_at else None
        self.sender.exchange(self.node.line, beat)  # type: ignore[arg-type]
        for raw in self.node.line.pop_all(redis_keys.reply(self.grant.claim)):
            message = TO_ATTEMPT.validate_json(raw)
            if isinstance(message, AttemptReply):
                self.sender.acknowledge(message.watermark)
                self._take(message)

    def _beat(self) -> AttemptBeat:
        self._number += 1
        self._beat_at = self.world.clock + self.grant.beat_seconds
        grant = self.grant
        return AttemptBeat(
            job=grant.job, attempt=grant.attempt, fence=grant.fence, claim=grant.claim, source=grant.source,
            number=self._number, journaled=self.journal.last,
        )  # fmt: skip

    def _take(self, reply: AttemptReply) -> None:
        self.is_closed = self.is_closed or reply.closed
        if reply.superseded or (reply.closed and not self.journal.is_done):
            if not self.is_superseded:
                self.world.say(self.name, "gets the reply that it is superseded")
            self.is_superseded = True
            return
        self.waits = self.waits and reply.rendezvous is None
        self.training.stored_step = max(self.training.stored_step, reply.stored_step or 0)
        if reply.stop is not None:
            self._obey(reply.stop)

    def _obey(self, stop: Stop) -> None:
        original, ours = self.stop, stop.because in ("drain", "time_limit")
        if original is not None and (ours or (original.because, original.mode) == (stop.because, stop.mode)):
            return
        self.world.say(self.name, "gets the order to stop: {} ({})", stop.because, stop.mode.value)
        until = self.world.clock + stop.within_seconds * KILL_SHARE
        self.stop = stop
        self._kill_at = self.world.clock if stop.mode is StopMode.KILL else until

    # Ending

    def _let_go(self) -> None:
        grant = self.grant
        self.books.on_journal_deletion((grant.job, grant.attempt, grant.source), grant.claim, self.journal.last,
                           is_superseded=self.is_superseded)  # fmt: skip
        self.world.say(self.name, "lets go of its journal at seq {}", self.journal.last)
        self.is_over = True
        self.journal.delete()

    def dies(self, *, loses_power: bool = False) -> None:
        """Kills the supervisor and its training. The node's resender takes over the journal."""
        if self.is_over:
            return
        self.is_over = True
        path, size = self.journal.path, self.journal.size
        self.journal.close()
        if loses_power and path.exists():
            os.truncate(path, self.world.dice.randint(min(int(self._synced), size), size))
