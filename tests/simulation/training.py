"""The training of a job, with its number of steps, its end, and its files in the artifact store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from footplate.contract.events import CheckpointData, DoneData, Ending, Failure, Kind
from footplate.contract.ids import JobId
from footplate.contract.layout import checkpoint_folder, outputs_folder
from footplate.contract.messages import Grant
from tests.simulation.world import World

Event = tuple[Kind, int | None, dict[str, Any]]
"""The kind, step and data of an event."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The behaviour of a job's training, whichever attempt runs it."""

    steps: int
    save_every: int
    keep: int = 1
    """The `save_total_limit` of the job."""
    crashes: float = 0.0
    """The probability that training crashes at a step."""
    is_poison: bool = False
    never_starts: bool = False
    ignores_stops: bool = False
    """True if training ends only when it is killed."""
    reason: str = "crashed"


class Store:
    """The artifact store, which knows the existing checkpoints and if they are intact."""

    def __init__(self) -> None:
        self.whole: dict[str, bool] = {}
        self.was_harmed: set[str] = set()
        """Jobs that lost a checkpoint because of a broken disk."""

    def put(self, path: str) -> None:
        self.whole[path] = True

    def remove(self, path: str) -> None:
        self.whole.pop(path, None)

    def remove_all(self, rows: list[tuple[JobId, str]]) -> list[tuple[JobId, str]]:
        """Removes checkpoints as prune does. After an interruption they are removed, but not reported as removed."""
        for _, path in rows:
            self.remove(path)
        return rows

    def flip_a_bit(self, path: str) -> None:
        self.whole[path] = False
        self.was_harmed.add(path.split("/")[1])


class Training:
    """One training process, which sends events and takes one step at a time."""

    def __init__(self, world: World, store: Store, plan: Plan, grant: Grant) -> None:
        self.world, self.store, self.plan, self.grant = world, store, plan, grant
        self.step = 0
        self.is_running = False
        self.outcome: DoneData | None = None
        """The last message of training."""
        self.is_dead = False
        self.stored_step = 0
        """The step of the newest checkpoint that was acknowledged as stored in SQL."""
        self._saved: list[tuple[int, str]] = []

    def turn(self, stop: str | None) -> list[Event]:
        """Returns the next events. `stop` is the mode of a requested stop."""
        if self.is_dead or self.outcome is not None or self.plan.never_starts:
            return []
        if not self.is_running:
            return self._begin()
        if self.plan.is_poison or self.world.chance(self.plan.crashes):
            self.is_dead = True
            return []
        self.step += 1
        events: list[Event] = [(Kind.LOG, self.step, {"loss": 1 / self.step})]
        if self.world.chance(0.3):
            events.append((Kind.LINE, self.step, {"text": f"step {self.step} of attempt {self.grant.attempt}"}))
        stops = stop is not None and not self.plan.ignores_stops
        is_due = self.step % self.plan.save_every == 0 or (stops and stop == "checkpoint")
        if is_due and self.grant.source == 0:
            events.append(self._save())
        if self.step >= self.plan.steps:
            outputs = str(outputs_folder(self.grant.job, self.grant.attempt))
            self.outcome = DoneData(
                ending=Ending.FINISHED, reason="completed", result={"steps": self.step}, outputs=outputs
            )
        elif stops:
            self.outcome = DoneData(ending=Ending.STOPPED, reason="cancel", result={"steps": self.step})
        return events

    def _begin(self) -> list[Event]:
        self.is_running = True
        events: list[Event] = [(Kind.STATE, None, {"state": "running"})]
        for offer in self.grant.checkpoints:
            if self.store.whole.get(offer.path):
                self.step = offer.step
                return [*events, (Kind.NOTE, None, {"message": f"continues at step {offer.step}"})]
            corrupt = CheckpointData(status="corrupt", path=offer.path, message="it does not verify")
            events.append((Kind.CHECKPOINT, offer.step, corrupt.model_dump(mode="json")))
        if self.grant.checkpoints:
            error = Failure(code="no_valid_checkpoint", message="none verifies")
            self.outcome = DoneData(ending=Ending.FAILED, reason="no_valid_checkpoint", error=error)
        return events

    def _save(self) -> Event:
        """Saves a checkpoint, deletes the oldest, and reports both, in the order of the real training."""
        path = str(checkpoint_folder(self.grant.job, self.grant.attempt, self.step))
        self.store.put(path)
        self._saved = [save for save in self._saved if save[1] != path]
        deleted: list[str] = []
        relied_on = self._relied_on()
        for _, old in list(self._saved):
            if len(self._saved) + 1 > self.plan.keep and old != relied_on:
                self.store.remove(old)
                deleted.append(old)
                self._saved = [save for save in self._saved if save[1] != old]
        self._saved.append((self.step, path))
        data = CheckpointData(status="committed", path=path, manifest_sha256="x", files=1, deleted=deleted)
        return Kind.CHECKPOINT, self.step, data.model_dump(mode="json")

    def _relied_on(self) -> str | None:
        """Returns the newest checkpoint that SQL has, or else the first that it will have."""
        saves = [path for step, path in self._saved if step <= self.stored_step]
        return (saves or [path for _, path in self._saved[:1]] or [None])[-1]
