"""The rules for a job on several nodes. Here a part is one node's share of an attempt, which is one row of `sources`.

All parts begin together: each node claims its part and waits, and control sends the rendezvous after the last claim.

A part that fails by itself ends the other parts at once. A part that only lost its connection to another part does not:
the failure or the silence of that other part is the reason. The attempt ends with its last part, so that no part still
runs during the next attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from footplate.contract.events import DoneData, Ending
from footplate.contract.lifecycle import Reason, StopMode
from footplate.contract.messages import Stop
from service.store.rows import SourceRow

PEER = Stop(because="peer", mode=StopMode.KILL, within_seconds=0.0)


def rendezvous(parts: Sequence[SourceRow]) -> str | None:
    """Returns the address of the rendezvous on the first node. Returns None until all nodes have claimed."""
    together = len(parts) > 1 and all(part.claim is not None for part in parts)
    return parts[0].rendezvous if together else None


def stop_of(parts: Sequence[SourceRow]) -> Stop | None:
    """Returns the stop request for the parts that still run if another part has failed by itself, else None."""
    return PEER if any(fails_all(end) for end in ends(parts)) else None


def ends(parts: Sequence[SourceRow]) -> list[DoneData]:
    """Returns the reported ends of the parts that have ended, in the order of their ranks."""
    return [DoneData.model_validate_json(part.done) for part in parts if part.done is not None]


def fails_all(end: DoneData) -> bool:
    """Returns True if this end of a part ends the whole attempt. At a time limit, all parts save and stop together."""
    return end.ending is Ending.FAILED and not end.another_s and end.reason != Reason.TIME_LIMIT


def has_to_end(parts: Sequence[SourceRow]) -> bool:
    """Returns True if the parts that still run must end soon: the first part has ended, or another part did not finish.

    If other parts have finished, the first part may still run for long, because the first part writes the outputs.
    """
    first_is_done = bool(parts) and parts[0].done is not None
    return first_is_done or any(end.ending is not Ending.FINISHED for end in ends(parts))


def known_end(parts: Sequence[SourceRow]) -> DoneData | None:
    """Returns the end of a part that already decides how the attempt ends, or None while no part decides.

    A finished first part decides, because this part writes the outputs. Otherwise the first part in the order of ranks
    that has failed by itself decides.
    """
    first = parts[0].done if parts else None
    if first is not None and (end := DoneData.model_validate_json(first)).ending is Ending.FINISHED:
        return end
    return next(filter(fails_all, ends(parts)), None)


def decisive(parts: Sequence[SourceRow]) -> DoneData:
    """Returns the end of the part that gives the attempt its result and its reason, after all parts have ended."""
    all_ends = ends(parts)
    failed = sorted((end for end in all_ends if end.ending is Ending.FAILED), key=lambda end: end.another_s)
    # A part that received a stop request has the reason. The other parts have only stopped together with this part.
    stopped = sorted((end for end in all_ends if end.ending is Ending.STOPPED), key=lambda end: end.stop is None)
    return known_end(parts) or (failed or stopped or all_ends)[0]
