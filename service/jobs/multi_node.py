"""The rules for a job on several nodes. A source is one node's share of an attempt, and a row of the table `sources`.

All nodes begin together: each node claims its share and waits, and control sends the rendezvous after the last claim.

A source that fails by itself ends the other sources at once. A source that only lost its connection to another node
ends no other source, because that node reports its own failure or counts as lost. The attempt ends with its last
source, so that no process still runs during the next attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from footplate.contract.events import DoneData, Ending
from footplate.contract.lifecycle import Reason, StopMode
from footplate.contract.messages import Stop
from service.store.row_types import SourceRow

PEER = Stop(because="peer", mode=StopMode.KILL, within_seconds=0.0)


def rendezvous(sources: Sequence[SourceRow]) -> str | None:
    """Returns the address of the rendezvous on the first node. Returns None until all nodes have claimed."""
    are_claimed = len(sources) > 1 and all(source.claim is not None for source in sources)
    return sources[0].rendezvous if are_claimed else None


def stop_of(sources: Sequence[SourceRow]) -> Stop | None:
    """Returns the stop request for the nodes that still train if another node has failed by itself, else None."""
    return PEER if any(fails_all(end) for end in ends(sources)) else None


def ends(sources: Sequence[SourceRow]) -> list[DoneData]:
    """Returns the ends of the sources that have ended, in the order of their ranks."""
    return [DoneData.model_validate_json(source.done) for source in sources if source.done is not None]


def fails_all(end: DoneData) -> bool:
    """Returns True if the other sources must be stopped because this one has failed by itself.

    A time limit needs no such stop, because every node stops at the limit by itself.
    """
    return end.ending is Ending.FAILED and not end.is_follow_up and end.reason != Reason.TIME_LIMIT


def has_to_end(sources: Sequence[SourceRow]) -> bool:
    """Returns True if the nodes that still train must end soon.

    That is so once the first node has ended, or once another node has failed or stopped. If the other nodes have
    finished, the first node may still run for long, because it writes the outputs.
    """
    first_is_done = bool(sources) and sources[0].done is not None
    return first_is_done or any(end.ending is not Ending.FINISHED for end in ends(sources))


def known_end(sources: Sequence[SourceRow]) -> DoneData | None:
    """Returns the end of the source that already decides how the attempt ends, or None while no source decides.

    The first source decides if it has finished, because it writes the outputs. Otherwise the first source in the order
    of ranks that has failed by itself decides.
    """
    first_end = sources[0].done if sources else None
    if first_end is not None and (end := DoneData.model_validate_json(first_end)).ending is Ending.FINISHED:
        return end
    return next(filter(fails_all, ends(sources)), None)


def decisive(sources: Sequence[SourceRow]) -> DoneData:
    """Returns the end of the source that gives the attempt its result and its reason, after all sources have ended."""
    all_ends = ends(sources)
    failures = sorted((end for end in all_ends if end.ending is Ending.FAILED), key=lambda end: end.is_follow_up)
    # The source that got a stop request knows its reason. The other sources only stopped because that source did.
    stops = sorted((end for end in all_ends if end.ending is Ending.STOPPED), key=lambda end: end.stop is None)
    return known_end(sources) or (failures or stops or all_ends)[0]
