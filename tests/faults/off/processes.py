"""Switches of the protections around processes that die, hang, freeze or do not want to end."""

from __future__ import annotations

import math
import os
import sys
from typing import Any, ClassVar

from tests.faults.off import switch


@switch("hearing how training ended", module="worker.attempt.training_processes")
def hear_no_end(training: Any) -> None:
    """The guardian's word that a process has ended goes unheard."""
    original = training.FROM_WARM.validate_json

    class Deaf:
        started: ClassVar[dict[int, Any]] = {}

        def validate_json(self, packet: bytes) -> Any:
            message = original(packet)
            return self.started.setdefault(message.rank, message)

    training.FROM_WARM = Deaf()


@switch("the table of foreign errors", module="footplate.contract.host.outcome")
def know_no_errors(outcome: Any) -> None:
    outcome.EXCEPTIONS = ()


@switch("the stall limit", module="worker.attempt.supervise")
def never_stalled(supervise: Any) -> None:
    supervise._check_stall = lambda attempt, now: None


@switch("KILL after TERM", module="worker.attempt.training_processes")
def ask_only(stopping: Any) -> None:
    stopping.KILL_SHARE = math.inf


@switch("poison is counted", module="service.jobs.conclude")
def count_no_poison(conclude: Any) -> None:
    conclude.POISON_AFTER = math.inf


@switch("dying with the worker", module="footplate.contract.host.linux")
def outlive_everyone(linux: Any) -> None:
    """Removes the kernel's death signal, and Celery's, and lets the warm parent hold its own lifeline."""
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


@switch("the generators of a checkpoint", module="footplate.trainer.seeds")
def draw_anew(seeds: Any) -> None:
    seeds.set_rng_state = lambda state: None


@switch("the fence", module="service.jobs.beat")
def whoever_claimed(beat: Any) -> None:
    """A grant is for ever, whoever holds the job now."""
    beat.holds = lambda job, part, attempt, fence, claim: part.claim == claim


@switch("the fence of events", module="service.events.changes")
def take_from_whoever_claimed(changes: Any) -> None:
    changes.holds = lambda job, part, attempt, fence, claim: part.claim == claim


@switch("the checkpoint of a drain", module="footplate.runtime.emit")
def stop_without_saving(emit: Any) -> None:
    obey = emit.Emit._obey

    def just_stop(self: Any, control: Any) -> None:
        obey(self, control)
        control.should_save = False

    emit.Emit._obey = just_stop


@switch("a drain costs no try", module="service.jobs.conclude")
def count_drains(conclude: Any) -> None:
    """A stop that nobody wished for is a failure like any other."""
    conclude._after_a_stop = lambda job: conclude.StateMove(conclude.JobState.FAILED, conclude.Reason.CRASHED)


@switch("dying with the warm parent as another user", module="footplate.contract.host.user")
def forget_the_parent(user: Any) -> None:
    """Requests the death signal before the process changes its user, and never again."""
    become = user.User.become

    def become_and_forget(self: Any) -> None:
        become(self)
        # The program of the warm parent, from which this process was forked.
        sys.modules["__main__"].die_with_parent = lambda *_: None  # type: ignore[attr-defined]

    user.User.become = become_and_forget


@switch("ending all that training has forked", module="footplate.contract.host.linux")
def end_nothing_but_the_group(linux: Any) -> None:
    """Processes that left the process group of training are adopted and reaped, and nothing ends them."""

    def turn(self: Any) -> list[int]:
        self._living()
        return []

    linux.Leftovers.turn = turn
    linux.kill_user = lambda *_: None
