"""The rules for a job on several nodes: its parts begin together, and their ends decide about the whole attempt.

Each node claims by itself and waits. Control sends the rendezvous to all when the last one has claimed.

A part that fails by itself ends the others at once. A part that only lost another one waits: that one's failure, or its
silence, is the reason. The attempt ends with its last part, so that no part runs beside the next attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from footplate.contract.events import DoneData, Ending
from footplate.contract.lifecycle import Reason, StopMode
from footplate.contract.messages import Stop
from service.store.rows import SourceRow

PEER = Stop(because="peer", mode=StopMode.KILL, within_seconds=0.0)


def rendezvous(parts: Sequence[SourceRow]) -> str | None:
    """Returns the address of the rendezvous on the first node, once all nodes have claimed."""
    together = len(parts) > 1 and all(part.claim is not None for part in parts)
    return parts[0].meets_at if together else None


def stop_of(parts: Sequence[SourceRow]) -> Stop | None:
    """Returns the stop request for the parts that still run."""
    return PEER if any(fails_all(end) for end in ends(parts)) else None


def ends(parts: Sequence[SourceRow]) -> list[DoneData]:
    """Returns the ends of the parts that have ended, in the order of their ranks."""
    return [DoneData.model_validate_json(part.done) for part in parts if part.done is not None]


def fails_all(end: DoneData) -> bool:
    """Returns True if this end of a part ends the whole attempt. At a time limit, all parts save and stop together."""
    return end.ending is Ending.FAILED and not end.another_s and end.reason != Reason.TIME_LIMIT


def has_to_end(parts: Sequence[SourceRow]) -> bool:
    """Returns True if the running parts have nothing left to do.

    A part that has finished waits for the first one, which may take its time to write the outputs.
    """
    first_is_done = bool(parts) and parts[0].done is not None
    return first_is_done or any(end.ending is not Ending.FINISHED for end in ends(parts))


def known_end(parts: Sequence[SourceRow]) -> DoneData | None:
    """Returns the end that already decides for the attempt, whatever the other parts do.

    The first part has finished, which writes the outputs, or one has failed by itself.
    """
    first = parts[0].done if parts else None
    if first is not None and (end := DoneData.model_validate_json(first)).ending is Ending.FINISHED:
        return end
    return next(filter(fails_all, ends(parts)), None)


def decisive(parts: Sequence[SourceRow]) -> DoneData:
    """Returns the end of the attempt from the ends of all parts that were begun."""
    all_ends = ends(parts)
    failed = sorted((end for end in all_ends if end.ending is Ending.FAILED), key=lambda end: end.another_s)
    # A part that was asked to stop has the reason. The others have only stopped with it.
    stopped = sorted((end for end in all_ends if end.ending is Ending.STOPPED), key=lambda end: end.stop is None)
    return known_end(parts) or (failed or stopped or all_ends)[0]
