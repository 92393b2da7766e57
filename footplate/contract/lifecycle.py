"""The life of a job: eight states, why it is in one, and the one table of moves between them."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    """Waits in SQL for a placement. The reason says what it waits for."""
    STARTING = "starting"
    """Placed on its node(s); attempt and fence were raised. Becomes RUNNING when every rank reported, QUEUED again when
    nobody claimed it in time."""
    RUNNING = "running"
    """A worker holds the lease. If it dies, rescue moves the job to QUEUED; the next placement makes attempt + 1."""
    STOPPING = "stopping"
    """Told to stop (cancel, pause or drain); has a stored deadline after which it counts as gone."""
    PAUSED = "paused"
    """Holds nothing. Resume queues it again, and it continues from its newest verified checkpoint."""
    SUCCEEDED = "succeeded"
    """Trained to the end. Final."""
    FAILED = "failed"
    """Ended by an error, a limit, or too many lost attempts. Can be resumed."""
    CANCELLED = "cancelled"
    """Ended because the user said so. Can be resumed."""

    @property
    def is_terminal(self) -> bool:
        """The job rests here: streams end and its history is complete, until a resume."""
        return self in TERMINAL

    @property
    def holds_slots(self) -> bool:
        return self in ACTIVE


class Desired(StrEnum):
    """What the user wants of the job, whatever it is doing at the moment."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class StopMode(StrEnum):
    """How hard a cancel pulls."""

    CHECKPOINT = "checkpoint"
    """Save at the next step, then stop. The default."""
    GRACEFUL = "graceful"
    """Stop at the next step without saving."""
    KILL = "kill"
    """End the process group at once."""


class Reason(StrEnum):
    """Why a job is in its state."""

    # queued
    CAPACITY = "capacity"
    """Its shape exists, but no node has room now."""
    NO_SUCH_SHAPE = "no_such_shape"
    """No node that is up has, even when empty, what it asks for."""
    RETRY = "retry"
    """The last attempt failed or was lost; waits out its backoff."""
    NOT_CLAIMED = "not_claimed"
    """The node it was placed on did not claim it in time. Costs no retry."""
    DRAINED = "drained"
    """Its node is going away; it continues elsewhere. Costs no retry."""
    RESUMED = "resumed"
    """Its user resumed it. While it still stops for a pause: it is queued again as soon as it has stopped."""
    SUBMITTED = "submitted"
    # starting, running
    PLACED = "placed"
    CLAIMED = "claimed"
    TRAINING = "training"
    # stopping, paused, cancelled
    CANCEL = "cancel"
    PAUSE = "pause"
    DRAIN = "drain"
    FINISHED_FIRST = "finished_first"
    """Cancelled, but training was done before the stop reached it: outputs are kept."""
    # succeeded
    COMPLETED = "completed"
    # failed, or the cause of a retry
    ERROR = "error"
    """The user's code, model or data raised."""
    CRASHED = "crashed"
    """The training process died: a signal, an exit code, a segfault."""
    OOM = "oom"
    STALLED = "stalled"
    """No progress within the stall limit."""
    NODE_LOST = "node_lost"
    """Its worker stopped answering."""
    POISON = "poison"
    """Three lost attempts in a row without a new checkpoint."""
    TIME_LIMIT = "time_limit"
    NO_VALID_CHECKPOINT = "no_valid_checkpoint"
    DATASET_ERROR = "dataset_error"
    JOURNAL_FULL = "journal_full"
    NOT_BUILDABLE = "not_buildable"
    """The spec names something that this node does not have or cannot build."""


NODE_BEGINS = "it has just started, and imports what training needs"
"""Why a node takes no work in its first seconds. No trouble, which every other such sentence tells of."""

S = JobState
TERMINAL = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
ACTIVE = frozenset({S.STARTING, S.RUNNING, S.STOPPING})

MOVES: dict[JobState, frozenset[JobState]] = {
    S.QUEUED: frozenset({S.STARTING, S.PAUSED, S.CANCELLED, S.FAILED}),
    S.STARTING: frozenset({S.RUNNING, S.QUEUED, S.STOPPING, S.PAUSED, S.CANCELLED, S.FAILED}),
    S.RUNNING: frozenset({S.STOPPING, S.SUCCEEDED, S.FAILED, S.QUEUED}),
    S.STOPPING: frozenset({S.CANCELLED, S.PAUSED, S.QUEUED, S.SUCCEEDED, S.FAILED}),
    S.PAUSED: frozenset({S.QUEUED, S.CANCELLED}),
    S.FAILED: frozenset({S.QUEUED}),
    S.CANCELLED: frozenset({S.QUEUED}),
    S.SUCCEEDED: frozenset(),
}
"""The one table of transitions. A move that is not here does not happen, whoever asks.

QUEUED -> FAILED is a placement that can never come: attempts or time spent while it waited.
"""


class Action(StrEnum):
    """What a user may ask of a job now."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    DO = "do"
    """Save, evaluate, or change an argument, after the step at hand."""
    FORK = "fork"
    DELETE = "delete"


def actions(state: JobState, desired: Desired) -> list[Action]:
    """The verbs that would change something in this state, in the order a menu would list them.

    A fork needs a checkpoint, and where there is one it is served in every state.
    """
    if state is S.SUCCEEDED:
        return [Action.FORK, Action.DELETE]
    if state in (S.FAILED, S.CANCELLED):
        return [Action.RESUME, Action.FORK, Action.DELETE]
    if state is S.PAUSED:
        return [Action.RESUME, Action.FORK, Action.CANCEL]
    if desired is Desired.CANCEL:
        return []
    if desired is Desired.PAUSE:
        return [Action.RESUME, Action.CANCEL]
    if state is S.RUNNING:
        return [Action.DO, Action.PAUSE, Action.FORK, Action.CANCEL]
    return [Action.PAUSE, Action.CANCEL]


def may_move(old: JobState, new: JobState) -> bool:
    return new in MOVES[old]
