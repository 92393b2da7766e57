"""A job on several nodes is one: its parts begin together, and what one of them comes to is everybody's.

begin   each node claims by itself and waits; where the ranks meet is told to all once the last has claimed
end     a part that failed by itself ends the others at once. One that only lost another waits: that one, or its
        silence, is the reason. The attempt is over when the last part is: nothing of it runs beside the next one
"""

from __future__ import annotations

from collections.abc import Sequence

from footplate.contract.events import DoneData, Ending
from footplate.contract.lifecycle import Reason, StopMode
from footplate.contract.messages import Stop
from service.store.rows import SourceRow

PEER = Stop(because="peer", mode=StopMode.KILL, within_seconds=0.0)


def meeting(parts: Sequence[SourceRow]) -> str | None:
    """Where the ranks of several nodes meet: on the first one, once all have claimed."""
    together = len(parts) > 1 and all(part.claim is not None for part in parts)
    return parts[0].meets_at if together else None


def stop_of(parts: Sequence[SourceRow]) -> Stop | None:
    """What the parts that still run are told."""
    return PEER if any(fails_all(end) for end in ends(parts)) else None


def ends(parts: Sequence[SourceRow]) -> list[DoneData]:
    """What those that have ended said of it, in the order of their ranks."""
    return [DoneData.model_validate_json(part.done) for part in parts if part.done is not None]


def fails_all(end: DoneData) -> bool:
    """Nobody can go on, and this is why. At a time limit all stop together, and save."""
    return end.ending is Ending.FAILED and not end.another_s and end.reason != Reason.TIME_LIMIT


def has_to_end(parts: Sequence[SourceRow]) -> bool:
    """Whether those that go on have nothing to do any more. Who has finished waits for the first, which may take its
    time to hand in outputs; once that is done it waits for nobody."""
    first_is_done = bool(parts) and parts[0].done is not None
    return first_is_done or any(end.ending is not Ending.FINISHED for end in ends(parts))


def known_end(parts: Sequence[SourceRow]) -> DoneData | None:
    """What the attempt has come to, whatever becomes of the parts that have not said anything: the first has finished,
    which speaks for all and writes the outputs, or one has failed by itself."""
    first = parts[0].done if parts else None
    if first is not None and (end := DoneData.model_validate_json(first)).ending is Ending.FINISHED:
        return end
    return next(filter(fails_all, ends(parts)), None)


def decisive(parts: Sequence[SourceRow]) -> DoneData:
    """Of parts that have all ended, or were never begun: which end is the attempt's."""
    found = ends(parts)
    failed = sorted((end for end in found if end.ending is Ending.FAILED), key=lambda end: end.another_s)
    # Who was told to stop knows why; the others have only stopped with it.
    stopped = sorted((end for end in found if end.ending is Ending.STOPPED), key=lambda end: end.stop is None)
    return known_end(parts) or (failed or stopped or found)[0]
