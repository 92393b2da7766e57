"""The life of a job: eight states, the reasons for them, and the one table of transitions."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    """The job waits in SQL for a placement. The reason says what it waits for."""
    STARTING = "starting"
    """The job is placed on its nodes, with a new attempt. It becomes `running` when every rank has reported that it
    trains, and `queued` again if a node does not claim the job in time."""
    RUNNING = "running"
    """The job trains. If its node is lost, the job becomes `queued`, and the next attempt continues from its newest
    checkpoint. A run elsewhere begins in this state."""
    STOPPING = "stopping"
    """A cancel, a pause, a drain or the time limit stops the job, which saves a checkpoint first. Training that does
    not end before the deadline is killed."""
    PAUSED = "paused"
    """The job holds no slots. A resume queues the job again, and training continues from its newest verified
    checkpoint."""
    SUCCEEDED = "succeeded"
    """The job trained to the end. Final."""
    FAILED = "failed"
    """The job ended by an error, a limit, or too many lost attempts. It can be resumed."""
    CANCELLED = "cancelled"
    """The job ended because its user cancelled it. It can be resumed."""

    @property
    def is_terminal(self) -> bool:
        """Returns True if the job has ended. Its event streams then end, and its history is complete until a resume."""
        return self in TERMINAL

    @property
    def holds_slots(self) -> bool:
        return self in ACTIVE


class Desired(StrEnum):
    """The state that the user wants the job to reach, whatever its present state."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class StopMode(StrEnum):
    """The ways in which a cancel stops training."""

    CHECKPOINT = "checkpoint"
    """Save at the next step, then stop. The default."""
    GRACEFUL = "graceful"
    """Stop at the next step without saving."""
    KILL = "kill"
    """Kill the training processes at once."""


class Reason(StrEnum):
    """The reasons for a job's state."""

    # queued
    CAPACITY = "capacity"
    """Some node has enough slots and GPUs for the job, but other jobs use them now."""
    NO_SUCH_SHAPE = "no_such_shape"
    """No running node has enough slots or GPUs for the job, even with no other job on the node."""
    RETRY = "retry"
    """The last attempt failed or was lost, and the next one starts after the job's backoff."""
    NOT_CLAIMED = "not_claimed"
    """The node that the job was placed on did not claim it in time. This uses up no retry."""
    DRAINED = "drained"
    """The job's node is shutting down, and the job continues elsewhere. This uses up no retry."""
    RESUMED = "resumed"
    """The user resumed the job. A job that is still stopping for a pause is queued again as soon as it has stopped."""
    SUBMITTED = "submitted"
    """The job is new, and placement has not looked at it yet."""
    # starting, running
    PLACED = "placed"
    """Control has chosen the job's nodes, and waits for them to claim the job."""
    CLAIMED = "claimed"
    """A node has claimed the job, and prepares its training."""
    TRAINING = "training"
    """Every rank of the job has reported that it trains."""
    # stopping, paused, cancelled
    CANCEL = "cancel"
    """A user cancelled the job."""
    PAUSE = "pause"
    """A user paused the job."""
    DRAIN = "drain"
    """The job's node is being drained, so the job saves a checkpoint and continues on another node."""
    FINISHED_FIRST = "finished_first"
    """The job was cancelled, but training had finished before the stop arrived. The outputs are kept."""
    # succeeded
    COMPLETED = "completed"
    """The job trained to its end, and its outputs are stored."""
    # failed, or the cause of a retry
    ERROR = "error"
    """The user's code, model or data raised an exception, or called sys.exit with 2, a message, or too early with 0."""
    CRASHED = "crashed"
    """The training process died by a signal, a segfault, or an exit code that is not the program's own decision."""
    OOM = "oom"
    """The memory of a GPU or of the machine was not enough for training."""
    STALLED = "stalled"
    """There was no progress within the stall limit."""
    NODE_LOST = "node_lost"
    """The job's worker stopped sending heartbeats, or a run elsewhere stopped sending reports."""
    POISON = "poison"
    """Three attempts in a row failed or were lost without a new checkpoint. If the last one that `retry.max_attempts`
    allows failed, the job has the reason of that attempt."""
    TIME_LIMIT = "time_limit"
    """The job ran for as long as its `time_limit` allows."""
    NO_VALID_CHECKPOINT = "no_valid_checkpoint"
    """The job has checkpoints, but all of them are damaged or missing, so there is none to continue from."""
    DATASET_ERROR = "dataset_error"
    """Rows or files of the data are missing, changed or unreadable."""
    JOURNAL_FULL = "journal_full"
    """The node's disk is full, or holds too many of the attempt's events that the service has not stored yet."""
    NOT_BUILDABLE = "not_buildable"
    """The spec names something that the node does not have or cannot build."""


NODE_BEGINS = "the node has just started, and imports what training needs"
"""The reason for which a node takes no work in its first seconds. All other such reasons are faults."""

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
"""The states to which a job may move from each state. Every other move is refused.

QUEUED -> FAILED happens when the job's attempts or its time limit are used up.
"""


class Action(StrEnum):
    """The actions that a user may request for a job now."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    DO = "do"
    """Save, evaluate, or change an argument after the current step."""
    FORK = "fork"
    DELETE = "delete"


def actions(state: JobState, desired: Desired) -> list[Action]:
    """Returns the actions that would change something in this state, in the order in which a menu shows them.

    A job with a checkpoint can be forked in every state. The fork is listed only where most jobs have a checkpoint.
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


def may_move(state: JobState, next_state: JobState) -> bool:
    return next_state in MOVES[state]
