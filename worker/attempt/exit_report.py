"""How an attempt ended, out of what its ranks said, what was asked of them, and how their processes went.

finished       wins over a stop that came too late
our verdict    wins over what training made of being killed for it
a stop         wins over what the ranks made of it, unless one of them had a reason of its own
a rank's end   by its own word, or by its exit where it left without one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from footplate.contract.errors import AttemptError
from footplate.contract.events import DoneData, Ending
from footplate.contract.host import outcome
from footplate.contract.host.outcome import Verdict
from footplate.contract.lifecycle import Reason
from footplate.contract.messages import Grant, Stop
from worker.attempt.rank_process import Rank
from worker.attempt.training_processes import Training


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """What a supervisor knows once nothing of training is left."""

    grant: Grant
    world: int
    """How many ranks the attempt had, on all its nodes."""
    training: Training
    verdict: Verdict | None
    """Why we ended it, where nobody told us to stop."""
    stop: Stop | None
    is_draining: bool
    """This very node goes away."""
    is_left_behind: bool
    """What training leaves could not be handed in: it finished for nothing."""
    oom_kills: int
    """By this machine's kernel, meanwhile."""


def exit_report(facts: ExitFacts) -> DoneData:
    told, stop, failed = facts.training.report, facts.stop, facts.training.failed
    if told is not None and told.ending is Ending.FINISHED and failed is None and not facts.is_left_behind:
        return told
    if facts.verdict is not None:
        return _failed(facts.verdict)
    # Who is ended because of another node has ended by itself, where it failed before.
    by_itself = stop is not None and stop.because == "peer" and failed is not None
    has_said_why = by_itself or (failed is not None and failed.report is not None)
    if stop is not None and not has_said_why:
        return _stopped(facts, stop, told.result if told else {})
    if failed is not None and failed.report is not None:
        return _by_rank(failed.report, facts.world).model_copy(update={"another_s": failed.is_another_s})
    if failed is None and told is not None and told.ending is Ending.STOPPED:
        # With the ranks of another node, which has heard of it first.
        return told
    return _by_rank(_failed(_why_it_died(failed, facts.oom_kills)), facts.world)


def crashed(message: str) -> Verdict:
    return outcome.of_ours(AttemptError(message), Reason.CRASHED)


def _stopped(facts: ExitFacts, stop: Stop, result: dict[str, Any]) -> DoneData:
    if stop.because == "time_limit":
        return _failed(outcome.time_limit((facts.grant.spec.get("resources") or {}).get("time_limit")), result)
    return DoneData(ending=Ending.STOPPED, reason=stop.because, stop=_obeyed(facts, stop), result=result)


def _obeyed(facts: ExitFacts, stop: Stop) -> Literal["cancel", "pause", "drain", "peer"] | None:
    """Of several nodes, the one that drains tells so: the others take new work."""
    another_s = stop.because == "drain" and facts.grant.nodes > 1 and not facts.is_draining
    return None if another_s or stop.because == "time_limit" else stop.because


def _by_rank(done: DoneData, world: int) -> DoneData:
    """Of several, which one it was is the first thing to know."""
    if world == 1 or done.error is None or done.error.rank is None:
        return done
    message = f"rank {done.error.rank} of {world}: {done.error.message}"
    return done.model_copy(update={"error": done.error.model_copy(update={"message": message})})


def _why_it_died(rank: Rank | None, oom_kills: int) -> Verdict:
    exit = rank.exit if rank is not None else None
    if rank is None or exit is None:
        return crashed("training is gone, and nobody saw how")
    if exit.never_started is not None:
        return crashed(f"the node could not start training: {exit.never_started}")
    return outcome.of_exit(
        exit.code, rank=exit.rank, peak_rss_mb=exit.peak_rss_mb, oom_kills=oom_kills, output=rank.tail()
    )


def _failed(verdict: Verdict, result: dict[str, Any] | None = None) -> DoneData:
    return DoneData(ending=Ending.FAILED, reason=verdict.reason, error=verdict.error, result=result or {})
