"""The moments before and after every durable step, at which tests kill the process.

`reached` raises an audit event of Python, which costs less than a microsecond if nothing listens.
`tests/faults/test_crash_points.py` kills a process at each of these moments.
"""

from __future__ import annotations

import sys
from enum import StrEnum

EVENT = "footplate.reached"


class Moment(StrEnum):
    """A named moment. A crash `before` a commit leaves no trace of the step. After a crash `after`, all is stored."""

    # The API
    BEFORE_SUBMIT_COMMITS = "submit.before"
    AFTER_SUBMIT_COMMITS = "submit.after"
    """The job is stored, but its client has no answer yet."""
    BEFORE_VERB_COMMITS = "verb.before"
    AFTER_VERB_COMMITS = "verb.after"
    """A cancel, pause, resume or delete is stored, but its client has no answer, and control has not read it yet."""

    # Control
    BEFORE_PLACE_COMMITS = "place.before"
    AFTER_PLACE_COMMITS = "place.after"
    """An attempt is placed, but its Celery message is not sent."""
    AFTER_DISPATCH = "dispatch.after"
    """The node's Celery message is sent, but SQL has no record of that."""
    AFTER_DISPATCH_COMMITS = "dispatch.marked"
    BEFORE_GRANT_COMMITS = "grant.before"
    """The claim is no longer in Redis and not yet in SQL. Only the claiming supervisor has it."""
    AFTER_GRANT_COMMITS = "grant.after"
    """An attempt is granted, but its supervisor has no answer yet."""
    AFTER_GRANT_SENT = "grant.sent"
    BEFORE_BEAT_COMMITS = "beat.before"
    AFTER_BEAT_COMMITS = "beat.after"
    BEFORE_INGEST_COMMITS = "ingest.before"
    AFTER_INGEST_COMMITS = "ingest.after"
    """Events are stored, but not yet acknowledged, and Redis still holds them."""
    AFTER_ACKNOWLEDGE = "ingest.acknowledged"
    BEFORE_CLOSE_COMMITS = "close.before"
    AFTER_CLOSE_COMMITS = "close.after"
    """The attempt has ended, and its supervisor waits for the reply."""
    BEFORE_RESCUE_COMMITS = "rescue.before"
    AFTER_RESCUE_COMMITS = "rescue.after"

    # The supervisor of an attempt
    AFTER_GRANT_RECEIVED = "attempt.granted"
    """The supervisor has received the grant, but has created no file for the attempt yet."""
    AFTER_JOURNAL_MADE = "attempt.journal"
    AFTER_LAUNCH = "attempt.launched"
    AFTER_JOURNAL_WRITE = "journal.written"
    """Events are in the file, but perhaps not on the disk."""
    AFTER_JOURNAL_SYNC = "journal.synced"
    BEFORE_SEND = "journal.sending"
    AFTER_SEND = "journal.sent"
    """Events are in Redis, but the supervisor has not checked whether they arrived."""
    AFTER_TRAINING = "attempt.over"
    """Training has ended, but no event says how."""
    AFTER_DONE_WRITTEN = "attempt.done"
    """The journal has its last event."""
    AFTER_DELIVERY = "attempt.delivered"
    """SQL has all events, and the journal still exists."""
    AFTER_JOURNAL_DELETED = "attempt.forgotten"

    # Training
    AFTER_CHECKPOINT_WRITTEN = "checkpoint.written"
    """The checkpoint's files exist in a temporary folder, without a seal."""
    AFTER_CHECKPOINT_SEALED = "checkpoint.sealed"
    AFTER_CHECKPOINT_RENAMED = "checkpoint.renamed"
    """The checkpoint is in its place, but the folder around it is not synced."""
    AFTER_CHECKPOINT_COMMITTED = "checkpoint.committed"
    """The checkpoint is complete, but not announced, and the older ones still exist."""
    AFTER_CHECKPOINT_ROTATED = "checkpoint.rotated"
    """An older checkpoint is deleted, and the newer one is not announced."""
    AFTER_CHECKPOINT_REPORTED = "checkpoint.reported"
    """The checkpoint's event is on its way to the supervisor."""
    AFTER_OUTPUTS_WRITTEN = "outputs.written"
    """The outputs exist, but no event says so."""


def reached(moment: Moment) -> None:
    sys.audit(EVENT, moment.value)
