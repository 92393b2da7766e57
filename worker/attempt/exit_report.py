"""Decides how an attempt ended: from the reports and exit codes of its ranks, the stop, and the supervisor's verdict.

The first line that applies decides.

    training finished         also if a stop came while it finished
    the supervisor's verdict  also if killed ranks reported something else
    a stop                    unless a rank failed for a reason of its own
    a rank failed             by the rank's report, or by its exit code if it sent no report
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
    """The facts about an attempt after its last training process has ended."""

    grant: Grant
    world: int
    """The number of ranks on all nodes."""
    training: Training
    verdict: Verdict | None
    """The reason why the supervisor ended the attempt, if no stop did."""
    stop: Stop | None
    is_draining: bool
    """True if this node drains."""
    are_outputs_lost: bool
    """True if training finished, but its outputs could not be copied to the artifact store."""
    oom_kills: int
    """Kills by the kernel's OOM killer on this machine while the attempt ran."""


def exit_report(facts: ExitFacts) -> DoneData:
    report, stop, failed = facts.training.report, facts.stop, facts.training.failed
    if report is not None and report.ending is Ending.FINISHED and failed is None and not facts.are_outputs_lost:
        return report
    if facts.verdict is not None:
        return _failed(facts.verdict)
    # A rank that failed before another node's stop came has a reason of its own.
    by_itself = stop is not None and stop.because == "peer" and failed is not None
    has_own_reason = by_itself or (failed is not None and failed.report is not None)
    if stop is not None and not has_own_reason:
        return _stopped(facts, stop, report.result if report else {})
    if failed is not None and failed.report is not None:
        return _by_rank(failed.report, facts.world).model_copy(update={"another_s": failed.is_follow_up})
    if failed is None and report is not None and report.ending is Ending.STOPPED:
        # Another node learned of the stop first, and its ranks stopped ours.
        return report
    return _by_rank(_failed(_why_it_died(failed, facts.oom_kills)), facts.world)


def crashed(message: str) -> Verdict:
    return outcome.of_ours(AttemptError(message), Reason.CRASHED)


def _stopped(facts: ExitFacts, stop: Stop, result: dict[str, Any]) -> DoneData:
    if stop.because == "time_limit":
        return _failed(outcome.time_limit((facts.grant.spec.get("resources") or {}).get("time_limit")), result)
    return DoneData(ending=Ending.STOPPED, reason=stop.because, stop=_reported_stop(facts, stop), result=result)


def _reported_stop(facts: ExitFacts, stop: Stop) -> Literal["cancel", "pause", "drain", "peer"] | None:
    """Returns the stop that `done` names. If the job has several nodes, only a node that drains names a drain."""
    another_s = stop.because == "drain" and facts.grant.nodes > 1 and not facts.is_draining
    return None if another_s or stop.because == "time_limit" else stop.because


def _by_rank(done: DoneData, world: int) -> DoneData:
    """Adds the rank to the error's message, if the attempt has several ranks."""
    if world == 1 or done.error is None or done.error.rank is None:
        return done
    message = f"rank {done.error.rank} of {world}: {done.error.message}"
    return done.model_copy(update={"error": done.error.model_copy(update={"message": message})})


def _why_it_died(rank: Rank | None, oom_kills: int) -> Verdict:
    exit = rank.exit if rank is not None else None
    if rank is None or exit is None:
        return crashed("training is gone, and its exit status is unknown")
    if exit.never_started is not None:
        return crashed(f"the node could not start training: {exit.never_started}")
    return outcome.of_exit(
        exit.code, rank=exit.rank, peak_rss_mb=exit.peak_rss_mb, oom_kills=oom_kills, output=rank.tail()
    )


def _failed(verdict: Verdict, result: dict[str, Any] | None = None) -> DoneData:
    return DoneData(ending=Ending.FAILED, reason=verdict.reason, error=verdict.error, result=result or {})
