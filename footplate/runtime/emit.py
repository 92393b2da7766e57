"""Emits the events of training, one line of JSON each, to the supervisor's socket. Training never waits for its reader.

When the socket is full, state, eval, checkpoint and note events are queued. Of log and progress events only the newest
is kept, and a note says how many were dropped. A byte of shared memory stops training, and costs 40 ns a step to read.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from footplate.contract.crash_points import Moment, reached
from footplate.contract.events import (
    KEPT,
    MAX_EVENT_BYTES,
    CheckpointData,
    DoneData,
    Ending,
    Kind,
    ProgressData,
    cut,
    json_safe,
    now_text,
)
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.host.launch import (
    IGNORES_STOPS_AT,
    OUTCOME,
    STOP_BYTES,
    STORED_AT,
    TERMINATED_AT,
    TICK,
    steps_held,
)
from footplate.contract.lifecycle import JobState, Reason, StopMode
from footplate.contract.messages import CheckpointOffer
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.state import TrainerControl, TrainerState, watched_metric
from footplate.trainer.strategies.peers import OneProcess

QUEUE_BYTES = 256 * 1024
"""The size of the queue up to which log events are queued, too. Events that must be kept are queued beyond it."""

MAX_NOTE = 4000
"""The most characters of a user's note."""
PROGRESS_SECONDS = 0.25
TICK_SECONDS = 1.0


FIRST_RANK_ONLY = frozenset({Kind.LOG, Kind.EVAL, Kind.CHECKPOINT, Kind.PROGRESS, Kind.DO})
"""Events that only the first rank reports. Other ranks send a tick, which only shows that they still work."""


class EventSocket:
    """The socket to the supervisor, with a queue for lines that the full socket does not take.

    Users' code may send notes from threads, for example from a reward function that asks a judge for many answers.
    """

    def __init__(self, fd: int, rank: int = 0) -> None:
        self._is_first = rank == 0
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        # Reentrant, because a user's signal handler may send a note while this thread sends.
        self._lock = threading.RLock()
        # A data loader's process shares this socket. It must not send its copy of the queued lines.
        os.register_at_fork(after_in_child=self._silence)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._merged: dict[str, int] = {}
        self._newest: dict[str, bytes] = {}
        self._is_silent = False

    def send(
        self,
        kind: str,
        data: dict[str, Any],
        step: int | None = None,
        epoch: float | None = None,
        *,
        is_users: bool = False,
    ) -> None:
        """Sends or queues an event. A full queue keeps only the newest note of the user's own code (`is_users`)."""
        if not self._is_first and kind in FIRST_RANK_ONLY:
            kind, data = TICK, {}
        line = _line({"kind": str(kind), "at": now_text(), "step": step, "epoch": epoch, "data": data})
        may_be_merged = is_users or (kind not in KEPT and kind not in (Kind.NOTE, OUTCOME))
        with self._lock:
            self.flush()
            if self._waiting_bytes > QUEUE_BYTES and may_be_merged:
                self._merged[kind] = self._merged.get(kind, 0) + (kind in self._newest)
                self._newest[kind] = line
                return
            self._take_merged()
            self._queue(line)
            self.flush()

    def flush(self, *, within: float = 0.0) -> None:
        """Sends what the socket accepts. Waits up to `within` seconds until all lines are sent."""
        with self._lock:
            deadline = time.monotonic() + within
            while (self._waiting or self._newest) and not self._is_silent:
                if not self._waiting:
                    self._take_merged()
                try:
                    sent_bytes = self._socket.send(self._waiting[0])
                except BlockingIOError:
                    remaining = deadline - time.monotonic()
                    if remaining <= 0:
                        return
                    select.select([], [self._socket], [], remaining)
                    continue
                except OSError:
                    # The supervisor has died, so this process will be killed in a moment.
                    self._waiting.clear()
                    return
                self._waiting_bytes -= sent_bytes
                line = self._waiting.popleft()
                if sent_bytes < len(line):
                    self._waiting.appendleft(line[sent_bytes:])

    def _take_merged(self) -> None:
        for kind, line in self._newest.items():
            self._queue(line)
            if count := self._merged.get(kind):
                text = f"{count} {kind} events were merged into the next one, because they came too fast"
                mark = {"message": text, "merged": count, "kind": kind}
                self._queue(_line({"kind": "note", "at": now_text(), "data": mark}))
        self._newest.clear()
        self._merged.clear()

    def _queue(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)

    def _silence(self) -> None:
        self._is_silent = True
        # Another thread may have held the lock at the fork, and does not exist in this process.
        self._lock = threading.RLock()
        self._waiting.clear()


def _line(event: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(event, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(json_safe(event), separators=(",", ":"))
    if len(text) > MAX_EVENT_BYTES:
        text = json.dumps(json_safe({**event, "data": cut(event["data"], len(text))}), separators=(",", ":"))
    return text.encode() + b"\n"


class StoppedEvaluating(Exception):
    """Raised if a job is stopped while it evaluates or predicts, because there is no training step to stop after."""


class Emit(TrainerCallback):
    """A callback that emits the Trainer's events, and that passes a stop to the Trainer's control."""

    def __init__(self, event_socket: EventSocket, stop_fd: int, files: AttemptFiles) -> None:
        self.event_socket = event_socket
        self.latest: dict[str, Any] = {}
        """The newest value of every metric, for the result."""
        self.obeyed: StopMode | None = None
        """The mode of the stop that this rank has followed. None: training has not been stopped."""
        self.peers: OneProcess = OneProcess()
        """The other ranks, once there is a Trainer. All ranks stop if one of them does."""
        self.stop_fd = stop_fd
        self._stop = mmap.mmap(stop_fd, mmap.PAGESIZE)
        self._files = files
        self._committed: dict[Path, int] = {}
        """The steps of the committed checkpoints by path, in the order of their commits."""
        self._progress_due = self._tick_due = 0.0
        self._began, self._first_step = 0.0, 0
        self._state: TrainerState | None = None
        self.reported_step = 0
        """The last step whose progress was reported."""
        self._trains = False

    def report_running(self) -> None:
        self.event_socket.send(Kind.STATE, {"state": JobState.RUNNING})

    def stopped_outcome(self, result: dict[str, Any]) -> DoneData:
        """Returns the outcome of a run that was stopped before its end."""
        return DoneData(ending=Ending.STOPPED, reason=Reason.CANCEL, result=result)

    def finished_outcome(self, result: dict[str, Any]) -> DoneData:
        """Returns the outcome of a run that has written its outputs."""
        reached(Moment.AFTER_OUTPUTS_WRITTEN)
        return DoneData(
            ending=Ending.FINISHED,
            reason=Reason.COMPLETED,
            result=result,
            outputs=self._files.relative(self._files.outputs),
        )

    def note(self, message: str, step: int | None = None, **fields: Any) -> None:
        self.event_socket.send(Kind.NOTE, {"message": message, **fields}, step)

    def users_note(self, message: str) -> None:
        if len(message) > MAX_NOTE:
            message = f"{message[:MAX_NOTE]}… ({len(message):,} characters)"
        self.event_socket.send(Kind.NOTE, {"message": message}, is_users=True)

    def report_checkpoint(self, status: Literal["corrupt", "healed"], offer: CheckpointOffer, message: str) -> None:
        """Reports that an earlier attempt's checkpoint is corrupt, or that a corrupt one is valid again."""
        data = CheckpointData(status=status, path=offer.path, manifest_sha256=offer.manifest_sha256, message=message)
        self.event_socket.send(Kind.CHECKPOINT, data.model_dump(mode="json"), offer.step)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._began, self._first_step = time.monotonic(), state.global_step
        self._trains = True

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._trains = False
        # A run that stops before its last step has not reported that step yet.
        self.last_progress()

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        if self._stop[0]:
            self._obey(control)
        self.progress(state)
        return control

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        if self.agree():
            # A stop ends the epoch early. The next attempt evaluates and saves at the epoch's real end. The loss is
            # logged, because no checkpoint stores it.
            control.should_evaluate = control.should_save = False
        return control

    def progress(self, state: TrainerState) -> None:
        """Reports progress at an interval, and at the last step."""
        self._state = state
        now = time.monotonic()
        if now >= self._progress_due or state.global_step == state.max_steps:
            self._progress_due, self._tick_due = now + PROGRESS_SECONDS, now + TICK_SECONDS
            self._progress(state, now)

    def agree(self) -> bool:
        """Returns True on all ranks if any rank was stopped. Ranks may read the stop byte at different steps."""
        if self.peers.any([self.obeyed is not None])[0] and self.obeyed is None:
            self.obeyed = StopMode.GRACEFUL
        return self.obeyed is not None

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, *, is_alone: bool = False, **kwargs: Any
    ) -> None:
        """Reports that the evaluation is running. Raises StoppedEvaluating after a stop request outside of training.

        With `is_alone`, the other ranks do not call this method at the same time, so only this rank's byte is read.
        """
        is_stopped = self._stop[0] != 0
        if not self._trains and (is_stopped if is_alone else self.peers.any([is_stopped])[0]):
            self._obey(control)
            raise StoppedEvaluating
        now = time.monotonic()
        if now >= self._tick_due:
            self._tick_due = now + TICK_SECONDS
            self.event_socket.send(TICK, {})

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = {name: value for name, value in kwargs["logs"].items() if name not in ("epoch", "step")}
        self.latest.update(logs)
        # An evaluation also logs its metrics. They are sent as an `eval` event.
        if not any(name.startswith("eval_") for name in logs):
            self.event_socket.send(Kind.LOG, logs, state.global_step, state.epoch)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        metrics = {name: value for name, value in kwargs["metrics"].items() if name != "epoch"}
        self.latest.update(metrics)
        self.event_socket.send(Kind.EVAL, metrics, state.global_step, state.epoch)

    # The metrics of a test set, whose names begin with `test_`, are reported as an evaluation.
    on_predict = on_evaluate  # type: ignore[assignment]

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Reports a committed checkpoint with its size, metrics and score, and the checkpoints that it replaced."""
        checkpoint = kwargs["checkpoint"]
        if checkpoint is None:
            # A subclass's own `_save_checkpoint` wrote something else, which no attempt could continue from.
            return
        self._committed.pop(checkpoint.path, None)
        deleted_paths = [path for path in self._committed if not path.exists()]
        for path in deleted_paths:
            del self._committed[path]
        self._committed[checkpoint.path] = checkpoint.step
        data = CheckpointData(
            status="committed",
            path=self._files.relative(checkpoint.path),
            bytes=checkpoint.bytes,
            manifest_sha256=checkpoint.manifest_sha256,
            files=sum(path.is_file() for path in checkpoint.path.rglob("*")),
            metrics=json_safe(self.latest),
            is_best=state.best_global_step == checkpoint.step,
            score=_score(args, state, checkpoint.step),
            deleted=[self._files.relative(path) for path in deleted_paths],
        )
        self.event_socket.send(Kind.CHECKPOINT, data.model_dump(mode="json"), checkpoint.step, state.epoch)
        reached(Moment.AFTER_CHECKPOINT_REPORTED)

    def asked_to_stop(self) -> bool:
        """Returns True if this rank has been asked to stop. A user's own loop then has to save and return."""
        if self._stop[0]:
            self._obey(TrainerControl())
        return self.obeyed is not None

    def reads_stops(self, reads: bool) -> None:
        """Reports to the supervisor whether anything reads the stop byte. If not, a stop begins with SIGTERM."""
        self._stop[IGNORES_STOPS_AT] = not reads

    @property
    def was_terminated(self) -> bool:
        """True after SIGTERM, which training gets if it does not stop in time. Its run then counts as stopped."""
        return self._stop[TERMINATED_AT] != 0

    def last_progress(self) -> None:
        """Reports the last step if it was not reported yet, so that a failure shows the step it reached."""
        if self._state is not None and self._state.global_step != self.reported_step:
            self._progress(self._state, time.monotonic())

    def relied_on(self) -> set[Path]:
        """Returns the checkpoints that must stay: the newest one in SQL, and those that other jobs start from.

        If this node dies now, the next attempt continues from the newest checkpoint in SQL. If SQL has none yet, the
        first checkpoint of this attempt must stay.
        """
        existing = [path for path in self._committed if path.exists()]
        stored_step = int.from_bytes(self._stop[STORED_AT], "little")
        stored = [path for path in existing if self._committed[path] <= stored_step]
        steps = steps_held(self._stop)
        return set(stored[-1:] or existing[:1]) | {path for path in existing if self._committed[path] in steps}

    def save_failed(self, failed: Any) -> None:
        """Reports a save that failed, for example on a full disk. The older checkpoint stays, and training goes on."""
        path = self._files.relative(self._files.folder / f"checkpoint-{failed.step}")
        data = CheckpointData(status="failed", path=path, message=failed.error).model_dump(mode="json")
        self.event_socket.send(Kind.CHECKPOINT, data, failed.step)

    def _obey(self, control: TrainerControl) -> None:
        self.obeyed = StopMode.CHECKPOINT if self._stop[0] == STOP_BYTES[StopMode.CHECKPOINT] else StopMode.GRACEFUL
        control.should_training_stop = True
        if self.obeyed is StopMode.CHECKPOINT:
            control.should_save = True

    def _progress(self, state: TrainerState, now: float) -> None:
        step, epoch = state.global_step, state.epoch or 0.0
        self.reported_step = step
        steps, remaining = step - self._first_step, state.max_steps - step
        eta = (now - self._began) / steps * remaining if steps > 1 and remaining >= 0 else None
        data = ProgressData(step=step, max_steps=max(state.max_steps, 0), epoch=epoch, eta_s=eta and round(eta, 2))
        self.event_socket.send(Kind.PROGRESS, data.model_dump(), step, epoch)


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values. Tensors that hold one number are converted to plain numbers."""
    return {str(name): value.item() if hasattr(value, "item") else value for name, value in values.items()}


def _score(args: Any, state: TrainerState, step: int) -> float | None:
    """Returns the value of `metric_for_best_model` at this step, or None without an evaluation at this step."""
    if not args.metric_for_best_model:
        return None
    name = watched_metric(args)
    values = [entry[name] for entry in state.log_history if entry.get("step") == step and name in entry]
    return float(values[-1]) if values and math.isfinite(values[-1]) else None
