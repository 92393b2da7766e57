"""The moments around every durable step, by name: where a process may die, and a test makes it die.

`reached` is an audit event of Python's own: without a listener it costs less than a microsecond and does nothing.
"""

from __future__ import annotations

import sys
from enum import StrEnum

EVENT = "footplate.reached"


class Moment(StrEnum):
    """`before` means that nothing of the step can be found later, `after` that all of it can."""

    BEFORE_SUBMIT_COMMITS = "submit.before"
    AFTER_SUBMIT_COMMITS = "submit.after"
    """The job is stored; its client has not heard of it."""
    BEFORE_PLACE_COMMITS = "place.before"
    AFTER_PLACE_COMMITS = "place.after"
    BEFORE_RING = "ring.before"
    AFTER_RING = "ring.after"
    """The node's bell has rung; SQL does not know it."""
    AFTER_RING_COMMITS = "ring.marked"
    AFTER_INBOX_READ = "inbox.read"
    """Claims and beats are out of Redis, and not yet in SQL."""
    AFTER_INBOX_COMMITS = "inbox.after"
    """An attempt is granted; its asker has not heard of it."""
    AFTER_REPLIES = "inbox.replied"
    AFTER_EVENTS_READ = "ingest.read"
    AFTER_INGEST_COMMITS = "ingest.after"
    """Events are stored; their journal has not heard of it, and Redis still holds them."""
    AFTER_ACKNOWLEDGE = "ingest.acknowledged"
    BEFORE_RESCUE_COMMITS = "rescue.before"
    AFTER_RESCUE_COMMITS = "rescue.after"


def reached(moment: Moment) -> None:
    sys.audit(EVENT, moment.value)
