"""The moments around every durable step, by name: where a process may die, and a test makes it die.

`reached` is an audit event of Python's own: without a listener it costs less than a microsecond and does nothing.
`tests/faults/test_crash_points.py` kills at each of them; one that is added here is killed there too.
"""

from __future__ import annotations

import sys
from enum import StrEnum

EVENT = "footplate.reached"


class Moment(StrEnum):
    """`before` a commit nothing of the step can be found later, `after` it all of it can."""

    # The API
    BEFORE_SUBMIT_COMMITS = "submit.before"
    AFTER_SUBMIT_COMMITS = "submit.after"
    """The job is stored; its client has not heard of it."""
    BEFORE_VERB_COMMITS = "verb.before"
    AFTER_VERB_COMMITS = "verb.after"
    """A cancel, pause, resume or delete is stored; its client has not heard of it, and neither has control."""

    # Control
    BEFORE_PLACE_COMMITS = "place.before"
    AFTER_PLACE_COMMITS = "place.after"
    """An attempt is placed; no bell has rung."""
    AFTER_RING = "ring.after"
    """The node's bell has rung; SQL does not know it."""
    AFTER_RING_COMMITS = "ring.marked"
    BEFORE_GRANT_COMMITS = "grant.before"
    """The claim is out of Redis and not in SQL: nobody but its asker has it."""
    AFTER_GRANT_COMMITS = "grant.after"
    """An attempt is granted; its asker has not heard of it."""
    AFTER_GRANT_TOLD = "grant.told"
    BEFORE_BEAT_COMMITS = "beat.before"
    AFTER_BEAT_COMMITS = "beat.after"
    BEFORE_INGEST_COMMITS = "ingest.before"
    AFTER_INGEST_COMMITS = "ingest.after"
    """Events are stored; their journal has not heard of it, and Redis still holds them."""
    AFTER_ACKNOWLEDGE = "ingest.acknowledged"
    BEFORE_CLOSE_COMMITS = "close.before"
    AFTER_CLOSE_COMMITS = "close.after"
    """The attempt has ended, and its supervisor waits for the word."""
    BEFORE_RESCUE_COMMITS = "rescue.before"
    AFTER_RESCUE_COMMITS = "rescue.after"
    AFTER_CHECKPOINTS_REMOVED = "rotate.removed"
    """Folders that a job need not keep are gone; SQL still means to remove them."""

    # The supervisor of an attempt
    AFTER_GRANT_HEARD = "attempt.granted"
    """An attempt is this process's, and has no file yet."""
    AFTER_JOURNAL_MADE = "attempt.journal"
    AFTER_LAUNCH = "attempt.launched"
    AFTER_JOURNAL_WRITE = "journal.written"
    """Events are in the file, and perhaps not on the disk."""
    AFTER_JOURNAL_SYNC = "journal.synced"
    BEFORE_SEND = "journal.sending"
    AFTER_SEND = "journal.sent"
    """Events are in Redis; the supervisor has not looked whether they arrived."""
    AFTER_TRAINING = "attempt.over"
    """Training has ended, and nothing says how."""
    AFTER_DONE_WRITTEN = "attempt.done"
    """The journal has its last event."""
    AFTER_HAND_OVER = "attempt.delivered"
    """SQL has everything; the journal is still there."""
    AFTER_JOURNAL_DELETED = "attempt.forgotten"

    # Training
    AFTER_CHECKPOINT_WRITTEN = "checkpoint.written"
    """Its files are there, aside and unsealed."""
    AFTER_CHECKPOINT_SEALED = "checkpoint.sealed"
    AFTER_CHECKPOINT_RENAMED = "checkpoint.renamed"
    """In its place; the folder around it is not synced."""
    AFTER_CHECKPOINT_COMMITTED = "checkpoint.committed"
    """It stands; nobody knows it, and the older ones are still there."""
    AFTER_CHECKPOINT_ROTATED = "checkpoint.rotated"
    """An older one is gone; nobody knows the newer one."""
    AFTER_CHECKPOINT_TOLD = "checkpoint.told"
    """Its event is on the way to the supervisor."""
    AFTER_OUTPUTS_WRITTEN = "outputs.written"
    """What the user wants to keep is there; nobody has said so."""


def reached(moment: Moment) -> None:
    sys.audit(EVENT, moment.value)
