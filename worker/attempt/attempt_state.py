"""The state of one attempt on this node, and how it handles events and replies.

Events of training and of the supervisor's threads are appended to the journal. Replies of control stop training, or are
passed on to it. The steps of an attempt are in `supervise.py`.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import redis

from footplate.contract.environment import SecretMask
from footplate.contract.errors import InvalidSpec
from footplate.contract.events import Kind, now_text
from footplate.contract.host import outcome
from footplate.contract.host.environment import job_environment
from footplate.contract.host.outcome import Verdict
from footplate.contract.lifecycle import Reason
from footplate.contract.messages import AttemptReply, Grant
from footplate.contract.spec import JobSpec
from worker.attempt.artifact_sync import ArtifactSync
from worker.attempt.control_link import ControlLink
from worker.attempt.fetch_thread import FetchThread
from worker.attempt.journal import Journal, JournalFull, JournalName
from worker.attempt.local_ranks import LocalRanks
from worker.attempt.rank_process import Events
from worker.attempt.rendezvous import Rendezvous
from worker.attempt.serve_link import ServeLink
from worker.attempt.training_processes import Stopping, Training
from worker.attempt.usage import Usage
from worker.identity import Node
from worker.settings import WorkerSettings

if TYPE_CHECKING:
    from worker.tracing import Spans


class Phase(StrEnum):
    """The phases of an attempt, in their order. Each is one step of `supervise.py`."""

    RENDEZVOUS = "rendezvous"
    FETCH = "fetch"
    RESERVE = "reserve"
    LAUNCH = "launch"
    TRAIN = "train"
    UPLOAD = "upload"
    CONCLUDE = "conclude"
    DELIVER = "deliver"


@dataclass(slots=True)
class Clocks:
    """The times of the periodic work in the supervisor's loop."""

    turned_at: float
    synced_at: float
    measure_at: float = 0.0
    usage: list[tuple[int, Usage]] = field(default_factory=list)
    """Each rank's number and the meter of its CPU, memory and GPUs, once the ranks have started."""


class Attempt:
    """The state of one attempt on this node.

    Holds the current phase, the facts that decide how the attempt ends, and the objects that run it. Such objects are
    the journal, the link to control and the training processes.
    """

    def __init__(
        self, settings: WorkerSettings, node: Node, grant: Grant, client: redis.Redis,
        claim_socket: socket.socket | None, spans: Spans,
    ) -> None:  # fmt: skip
        """Takes the bound `claim_socket`, at which other nodes' ranks can reach this one. The claim had its address."""
        self.settings, self.node, self.grant, self.spans = settings, node, grant, spans

        # Progress
        self.phase = Phase.RENDEZVOUS
        self.since = {Phase.RENDEZVOUS: time.monotonic()}
        """The time at which each phase began. Phases that were skipped are not in it."""
        self.runs_since: float | None = None
        """The time at which training reported that it runs. Supervisor and control count time limits from it."""

        # What has happened
        self.verdict: Verdict | None = None
        """The failure that the supervisor itself has detected, which ends the attempt. None if there is none."""
        self.is_superseded = False
        """True if control has declared the attempt lost. Its events may not be reported any more."""
        self.are_outputs_lost = False
        """True if training finished, but its outputs could not be copied to the artifact store."""
        self.had_checkpoint = False
        """True if this attempt has committed a checkpoint."""

        # The spec. It stays empty if it cannot be parsed. The attempt then ends before its first step.
        self.spec, environment = JobSpec(), dict[str, str]()
        rights, env_allowed = node.rights, settings.env_allowed
        try:
            self.spec = JobSpec.parse(grant.spec)
            environment = job_environment(self.spec, env_allowed, node.secrets, node.folder.root, rights.user)
        except InvalidSpec as error:
            # This version of the node does not accept the spec, or the node lacks a variable or a secret of the job.
            self.end_with(outcome.of_ours(error, Reason.NOT_BUILDABLE))
        secrets = [node.secrets.get(name, "") for name in self.spec.secrets]
        # The node's HF_TOKEN is masked although training does not get it, because training may read it from a file.
        self.secret_mask = SecretMask([*secrets, os.environ.get("HF_TOKEN", "")])

        # The objects that run the attempt
        name, max_mb = JournalName(**dict(grant)), settings.journal_max_mb
        try:
            self.journal = Journal.create(node.folder.journals, name, max_mb)
        except OSError as error:
            # The disk is full, so that is reported from a journal in memory.
            self.verdict, self.journal = disk_full(error), Journal.in_memory(name, max_mb)
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.sync: ArtifactSync | None = None
        """Copies artifacts from and to a bucket, if the artifact store is one."""
        self.fetch_thread = FetchThread(settings, grant, self.spec, self.wake, is_for_another_user=rights.is_given_up)
        """Downloads what the spec names on hubs and by URLs."""
        self.link = ControlLink(client, grant, self.journal, self.wake)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.wake, selectors.EVENT_READ, self.receive_from_threads)
        self.ranks = LocalRanks(settings, node, grant, self.spec, environment)
        self.rendezvous = Rendezvous(grant, claim_socket)
        self.training = Training(self.selector, self.receive_from_training)
        self.stopping = Stopping(self.training)
        self.serving: ServeLink | None = None
        """Passes requests to the process and answers back, if the job is a serving session."""
        if self.spec.serve is not None:
            self.serving = ServeLink(client, grant.job, self.spec.serve.max_batch, self.secret_mask)
        self.clocks = Clocks(turned_at=time.monotonic(), synced_at=time.monotonic())

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since[phase] = time.monotonic()

    def needs(self, phase: Phase) -> bool:
        """Returns False if this phase must be skipped, because the attempt is called off or training never started."""
        if phase in (Phase.TRAIN, Phase.UPLOAD):
            return self.training.has_begun
        return not (self.is_superseded if phase in (Phase.CONCLUDE, Phase.DELIVER) else self.is_called_off)

    def end_with(self, verdict: Verdict) -> None:
        """Sets the failure for which the supervisor ends the attempt. Later failures are ignored."""
        self.verdict = self.verdict or verdict

    @property
    def is_called_off(self) -> bool:
        """True if the attempt must end: by a stop, by a failure, or because control declared it lost."""
        return self.is_superseded or self.stopping.stop is not None or self.verdict is not None

    @property
    def is_delivered(self) -> bool:
        """True if SQL has the attempt's last event."""
        return self.journal.is_done and self.link.acknowledged >= self.journal.last

    def running_seconds(self, now: float) -> float:
        return 0.0 if self.runs_since is None else now - self.runs_since

    def receive(self, longest: float) -> None:
        """Waits for training or a thread of the supervisor, and calls the functions that the selector has for them."""
        self.link.beats.record_turn()
        for key, _ in self.selector.select(longest):
            key.data()

    def receive_from_training(self, events: Events) -> None:
        """Appends training's events to the journal. With a bucket, a checkpoint's event waits for its upload."""
        self.append(events if self.sync is None else self.sync.hold_checkpoints(events))

    def receive_from_threads(self) -> None:
        """Handles the events of the copying threads, the replies of control, and the outages of Redis."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.wake)
        for events in (self.fetch_thread.events, *([self.sync.events] if self.sync else [])):
            while not events.empty():
                self.append([events.get()])
        while not self.link.replies.empty():
            self._follow(self.link.replies.get())
        while not self.link.outages.empty():
            seconds = self.link.outages.get()
            why = f"Redis did not answer for {seconds:.0f} s"
            text = f"{why}: events were buffered on the node's disk and are delivered now"
            self.append(
                [event_of(Kind.NOTE, {"message": text, "code": "redis_unreachable", "seconds": round(seconds, 1)})]
            )

    def _follow(self, reply: AttemptReply) -> None:
        """Carries out a reply of control. Control repeats a stop or a command until a heartbeat confirms it."""
        training = self.training
        if reply.superseded or (reply.closed and not self.journal.is_done):
            self.is_superseded = True
            return
        self.rendezvous.open(reply.rendezvous)
        if reply.stored_step is not None:
            training.send_stored_step(reply.stored_step)
        for command in reply.commands:
            if command.no > self.link.beats.last_command:
                training.send_command(command)
                self.link.beats.last_command = command.no
        if reply.held_steps is not None:
            training.send_held_steps(reply.held_steps)
        if reply.stop is not None:
            self.stopping.follow(reply.stop)

    def append(self, events: Events) -> None:
        """Appends events to the journal. Events after `done` are dropped, because SQL would never accept them."""
        if not events or self.is_superseded or self.journal.is_done:
            return
        try:
            self.journal.append(self.secret_mask(events))
        except JournalFull as error:
            self.end_with(outcome.of_ours(error, Reason.JOURNAL_FULL))
            return
        self.spans.add_events(events)
        self.link.send_now(beat=self._record(events))

    def _record(self, events: Events) -> bool:
        """Records that there is a checkpoint, and that training runs. Returns True if training has just started."""
        was_running = self.runs_since is not None
        for event in events:
            if event["kind"] == Kind.CHECKPOINT and event["data"].get("status") == "committed":
                self.had_checkpoint = True
            if event["kind"] == Kind.STATE and self.runs_since is None:
                self.runs_since = time.monotonic()
        return self.runs_since is not None and not was_running


def event_of(kind: Kind, data: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "at": now_text(), "data": data}


def disk_full(error: OSError) -> Verdict:
    return outcome.of_ours(JournalFull.of(error), Reason.JOURNAL_FULL)
