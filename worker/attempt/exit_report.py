"""Decides how an attempt ended, from the reports and exit codes of its ranks, a stop, and failures.

The first line that applies decides.

    training finished         also if a stop came while training finished
    the supervisor's failure  detected by the supervisor itself, also if killed ranks reported something else
    a stop                    unless a rank failed for a reason of its own
    a rank failed             by the rank's report, or by its exit code if it sent no report
"""

from __future__ import annotations

import time
from typing import Any

from footplate.contract.errors import AttemptError
from footplate.contract.events import DoneData, Ending
from footplate.contract.host import outcome
from footplate.contract.host.outcome import Verdict
from footplate.contract.lifecycle import Reason
from footplate.contract.messages import Stop
from worker.attempt.attempt_state import Attempt
from worker.attempt.rank_process import Rank


def exit_report(attempt: Attempt) -> DoneData:
    """Returns the data of the event `done`. All training processes of the attempt must have ended."""
    running_s = round(attempt.running_seconds(time.monotonic()), 3)
    return _decide(attempt).model_copy(update={"running_s": running_s, "had_checkpoint": attempt.had_checkpoint})


def _decide(attempt: Attempt) -> DoneData:
    report, stop, failed_rank = attempt.training.report, attempt.stopping.stop, attempt.training.failed
    if report is not None and report.ending is Ending.FINISHED and failed_rank is None and not attempt.are_outputs_lost:
        return report
    if attempt.verdict is not None:
        return _failed(attempt.verdict)
    # If another node's failure stopped this node, a rank that had failed before has a reason of its own.
    by_itself = stop is not None and stop.because == "peer" and failed_rank is not None
    has_own_reason = by_itself or (failed_rank is not None and failed_rank.report is not None)
    if stop is not None and not has_own_reason:
        return _stopped(attempt, stop, report.result if report else {})
    if failed_rank is not None and failed_rank.report is not None:
        end, error = failed_rank.report, failed_rank.report.error
        if error is not None:
            end = end.model_copy(update={"error": outcome.with_stderr(error, failed_rank.stderr_tail())})
        return _by_rank(end, attempt.ranks.world)
    if failed_rank is None and report is not None and report.ending is Ending.STOPPED:
        # Another node learned of the stop first, and its ranks stopped ours.
        return report
    return _by_rank(_failed(_why_it_died(failed_rank)), attempt.ranks.world)


def crashed(message: str) -> Verdict:
    """Returns the failure of training that could not start, or whose exit is unknown. The job may be retried."""
    return outcome.of_ours(AttemptError(message), Reason.CRASHED)


def _stopped(attempt: Attempt, stop: Stop, result: dict[str, Any]) -> DoneData:
    if stop.because == "time_limit":
        return _failed(outcome.time_limit(attempt.spec.resources.time_limit), result)
    # If the job has several nodes, only the node that is being drained reports the drain as the cause.
    drains_elsewhere = stop.because == "drain" and attempt.grant.nodes > 1 and not attempt.node.folder.is_draining()
    reported_cause = None if drains_elsewhere else stop.because
    return DoneData(ending=Ending.STOPPED, reason=stop.because, stop=reported_cause, result=result)


def _by_rank(end: DoneData, world: int) -> DoneData:
    """Adds the rank to the error's message, if the attempt has several ranks."""
    if world == 1 or end.error is None or end.error.rank is None:
        return end
    message = f"rank {end.error.rank} of {world}: {end.error.message}"
    return end.model_copy(update={"error": end.error.model_copy(update={"message": message})})


def _why_it_died(rank: Rank | None) -> Verdict:
    exit = rank.exit if rank is not None else None
    if rank is None or exit is None:
        return crashed("the training process has ended, and its exit code is unknown")
    if exit.never_started is not None:
        return crashed(f"the node could not start training: {exit.never_started}")
    return outcome.of_exit(
        exit.code, rank=exit.rank, peak_rss_mb=exit.peak_rss_mb, is_oom_kill=exit.is_oom_kill, output=rank.tail()
    )


def _failed(verdict: Verdict, result: dict[str, Any] | None = None) -> DoneData:
    return DoneData(ending=Ending.FAILED, reason=verdict.reason, error=verdict.error, result=result or {})
