"""A simulated node with the worker's own journal, sender and resends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from footplate.contract import redis_keys
from footplate.contract.ids import NodeId
from footplate.contract.messages import TO_ATTEMPT, Claim, Denial, Grant, NodeBeat, NodeReply
from tests.simulation.control import SETTINGS
from tests.simulation.pipe import Line, parted
from tests.simulation.supervisor import Supervisor
from worker.attempt.journal import SUFFIX
from worker.node.resender import Resender
from worker.redis_client import REDIS_ERRORS, post

if TYPE_CHECKING:
    from tests.simulation.railway import Railway

ASK_AGAIN_SECONDS = 1.0


class Node:
    """A host, with the state that survives a restart of its node process."""

    def __init__(self, railway: Railway, name: str, slots: int) -> None:
        self.railway, self.world, self.name, self.slots = railway, railway.world, name, slots
        self.line = Line(railway.redis)
        self.folder: Path = railway.world.folder / name
        self.is_frozen = self.drains = False
        self.boots = 0
        self.start: Start | None = None
        self._identify()

    def _identify(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.id: NodeId = self.world.new_node()
        self.world.call(self.id, self.name)
        self.railway.books.slots[self.id] = self.slots

    def up(self) -> None:
        if self.start is None:
            self.boots += 1
            self.is_frozen = self.drains = False
            self.line.is_cut = False
            self.start = Start(self, f"{self.name}-{self.boots:04}")
            self.world.say(self.name, "starts, boot {}", self.start.boot)

    def down(self, *, loses_power: bool = False, loses_disk: bool = False) -> None:
        """Kills all processes. A power cut also loses unsynced data, and a broken disk all journals."""
        start, self.start = self.start, None
        if start is None:
            return
        for supervisor in start.supervisors:
            supervisor.dies(loses_power=loses_power)
        for sender in start.resender.senders.values():
            sender.journal.close()
        start.is_over = True
        if loses_disk:
            shutil.rmtree(self.folder)
            self._identify()

    @property
    def journals(self) -> list[Path]:
        return list(self.folder.glob(f"*{SUFFIX}"))


class PendingClaim:
    """A claim for one message of the node's queue, until it is granted or denied."""

    def __init__(self, start: Start, job: str, attempt: str, fence: str) -> None:
        self.start, self.world = start, start.world
        node = start.node
        self.claim = Claim(
            job=job,  # type: ignore[arg-type]
            attempt=int(attempt),
            fence=int(fence),  # type: ignore[arg-type]
            claim=self.world.new_claim(),
            node=node.id,
            boot=start.boot,
            rendezvous=f"{node.name}:29500",
        )
        self.asked_at = float("-inf")

    def turn(self) -> bool:
        """Takes the next step, and returns True if the claim has no answer yet."""
        node = self.start.node
        if node.drains:
            return False
        if self.world.clock - self.asked_at >= ASK_AGAIN_SECONDS:
            self.asked_at = self.world.clock
            with node.line.pipeline() as pipeline:
                post(pipeline, self.claim)
                pipeline.execute()
        for raw in node.line.pop_all(redis_keys.reply(self.claim.claim)):
            answer = TO_ATTEMPT.validate_json(raw)
            if isinstance(answer, Grant):
                self.world.say(node.name, "is granted {} attempt {}", answer.job, answer.attempt)
                self.start.supervisors.append(Supervisor(self.start, answer))
                return False
            if isinstance(answer, Denial):
                self.world.say(
                    node.name, "is denied {} attempt {}: {}", self.claim.job, self.claim.attempt, answer.reason
                )
                return False
        return True


class Start:
    """One run of the node process, with all state that is lost when it dies."""

    def __init__(self, node: Node, boot: str) -> None:
        self.node, self.boot, self.world = node, boot, node.world
        self.supervisors: list[Supervisor] = []
        self.is_over = False
        self.resender = Resender(node.folder)
        self._claims: list[PendingClaim] = []
        self._number = 0
        self._beat_at = self.world.clock + 0.3
        self.world.after(self.world.between(0, 0.3), self._turn)

    def _turn(self) -> None:
        if self.is_over:
            return
        node = self.node
        if not node.is_frozen:
            try:
                self.resender.send(node.line)  # type: ignore[arg-type]
                if self.world.clock >= self._beat_at:
                    self._beat()
                self._listen()
                self._take_start_messages()
                for claim in list(self._claims):
                    if not claim.turn():
                        self._claims.remove(claim)
            except REDIS_ERRORS:
                for sender in self.resender.senders.values():
                    sender.rewind()
        self.world.after(self.world.between(0.4, 0.8), self._turn)

    def _beat(self) -> None:
        self._beat_at = self.world.clock + SETTINGS.beat_seconds
        self._number += 1
        node = self.node
        beat = NodeBeat(
            node=node.id, boot=self.boot, number=self._number, name=node.name, slots=node.slots, draining=node.drains
        )
        with node.line.pipeline() as pipeline:
            post(pipeline, beat)
            pipeline.execute()

    def _listen(self) -> None:
        for raw in self.node.line.pop_all(redis_keys.node_reply(self.node.id, self.boot)):
            NodeReply.model_validate_json(raw)

    def _take_start_messages(self) -> None:
        self.supervisors = [supervisor for supervisor in self.supervisors if not supervisor.is_over]
        while len(self.supervisors) + len(self._claims) < self.node.slots:
            raw = self.node.line.pop(redis_keys.queue(self.node.id))
            if raw is None:
                return
            if not self.node.drains:
                self._claims.append(PendingClaim(self, *parted(raw)))
