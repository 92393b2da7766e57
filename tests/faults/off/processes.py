"""Switches of the protections around processes that die, hang, freeze or ignore a signal."""

from __future__ import annotations

import math
import os
import sys
from typing import Any, ClassVar

from tests.faults.off import switch


@switch("the end of training is received", module="worker.attempt.training_processes")
def ignore_the_end_of_training(training: Any) -> None:
    """Ignores the guardian's message that a process has ended."""
    original = training.FROM_WARM.validate_json

    class Deaf:
        first_messages: ClassVar[dict[int, Any]] = {}

        def validate_json(self, packet: bytes) -> Any:
            message = original(packet)
            return self.first_messages.setdefault(message.rank, message)

    training.FROM_WARM = Deaf()


@switch("the table of errors of libraries", module="footplate.contract.host.outcome")
def know_no_errors(outcome: Any) -> None:
    outcome.EXCEPTIONS = ()


@switch("the stall limit", module="worker.attempt.supervise")
def never_stalled(supervise: Any) -> None:
    supervise._check_stall = lambda attempt, now: None


@switch("KILL after TERM", module="worker.attempt.training_processes")
def send_no_kill(stopping: Any) -> None:
    stopping.KILL_SHARE = math.inf


@switch("poison is counted", module="service.jobs.conclude")
def count_no_poison(conclude: Any) -> None:
    conclude.POISON_AFTER = math.inf


@switch("training dies with the worker", module="footplate.contract.host.linux")
def send_no_death_signal(linux: Any) -> None:
    """Removes the death signals of the kernel and of Celery, and keeps the warm parent's lifeline open."""
    adopt = linux.adopt_orphans

    def adopt_and_hold() -> None:
        adopt()
        reading, _ = os.pipe()
        os.dup2(reading, 0)

    linux.adopt_orphans = adopt_and_hold
    linux.die_with_parent = lambda *_: linux._call(linux._PR_SET_PDEATHSIG, 0)


@switch("the lease of an attempt", module="service.jobs.rescue")
def wait_for_ever(rescue: Any) -> None:
    rescue._ActiveJob._is_silent = lambda self, part: False


@switch("a checkpoint restores random generators", module="footplate.trainer.seeds")
def restore_no_generators(seeds: Any) -> None:
    seeds.set_rng_state = lambda state: None


@switch("the fence of heartbeats", module="service.jobs.beat")
def ignore_the_fence_of_heartbeats(beat: Any) -> None:
    """Accepts heartbeats of every attempt that was ever granted."""
    beat.holds = lambda job, part, attempt, fence, claim: part.claim == claim


@switch("the fence of events", module="service.events.changes")
def ignore_the_fence_of_events(changes: Any) -> None:
    changes.holds = lambda job, part, attempt, fence, claim: part.claim == claim


@switch("a drain saves a checkpoint", module="footplate.runtime.emit")
def stop_without_saving(emit: Any) -> None:
    obey = emit.Emit._obey

    def just_stop(self: Any, control: Any) -> None:
        obey(self, control)
        control.should_save = False

    emit.Emit._obey = just_stop


@switch("a drain costs no retry", module="service.jobs.conclude")
def count_drains(conclude: Any) -> None:
    """Counts a stop that no user requested as a failure."""
    conclude._after_a_stop = lambda job: conclude.StateMove(conclude.JobState.FAILED, conclude.Reason.CRASHED)


@switch("training under its own user dies with the warm parent", module="footplate.contract.host.user")
def lose_the_death_signal(user: Any) -> None:
    """Requests the death signal only before the process changes its user, which clears the signal."""
    become = user.User.become

    def become_and_forget(self: Any) -> None:
        become(self)
        # `__main__` is the program of the warm parent, because this process was forked from the warm parent.
        sys.modules["__main__"].die_with_parent = lambda *_: None  # type: ignore[attr-defined]

    user.User.become = become_and_forget


@switch("all processes of training are ended", module="footplate.contract.host.linux")
def leave_other_process_groups(linux: Any) -> None:
    """Adopts and reaps processes that left the process group of training, but ends none of them."""

    def turn(self: Any) -> list[int]:
        self._living()
        return []

    linux.Leftovers.turn = turn
    linux.kill_user = lambda *_: None
