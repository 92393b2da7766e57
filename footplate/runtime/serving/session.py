"""A serving session: loads a checkpoint, takes requests, answers them in batches, and ends after an idle time.

One thread reads requests from the supervisor's socket. The main thread answers them, so that torch is used by one
thread only. Requests that can share one batch are answered together.
"""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import ValidationError

from footplate.contract.errors import FootplateError
from footplate.contract.events import DoneData, Ending, json_safe
from footplate.contract.host.launch import TICK, Order
from footplate.contract.lifecycle import Reason
from footplate.contract.serving import (
    MAX_PIECE_BYTES,
    SLOT_WANTED,
    WANTED_SECONDS,
    AnswerPiece,
    AnswerPieceKind,
    ServingRequest,
    Work,
)
from footplate.contract.spec import JobSpec
from footplate.runtime.build import Parts
from footplate.runtime.emit import Emit
from footplate.runtime.serving.embeddings import embed
from footplate.runtime.serving.loaded_model import CannotAnswer, LoadedModel, SharedBase
from footplate.runtime.serving.predictions import Predictions
from footplate.runtime.serving.texts import Texts
from footplate.runtime.starting_point import load_checkpoint
from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.serving")

LOOK_SECONDS = 0.5
"""The longest wait for a request before the session checks again whether the supervisor has stopped it."""
READ_BYTES = 256 * 1024
IDLE_SECONDS = 1.0
"""The time without a request after which a session gives its slot to a job that waits."""
TURN_SECONDS = 30.0
"""The time after which a session that still gets requests gives its slot to a job that waits."""


class Slot:
    """Decides when the session gives its slot to another job.

    While another job waits, an idle session ends at once, and a busy one after TURN_SECONDS. So two busy sessions that
    need the same slot take turns, and neither loads its checkpoint again for each request.
    """

    def __init__(self) -> None:
        self._wanted_since = self._wanted_at = float("-inf")

    def wanted(self, now: float) -> None:
        """Records that another job waits for the slot now."""
        if now - self._wanted_at > WANTED_SECONDS:
            self._wanted_since = now
        self._wanted_at = now

    def must_be_free(self, now: float, last_work_at: float | None) -> bool:
        """Returns True if another job waits, and the session is idle or has used up its turn.

        `last_work_at` is the time at which the session's last request ended, or None if none has ended.
        """
        if now - self._wanted_at > WANTED_SECONDS:
            return False
        is_idle = last_work_at is not None and now - last_work_at > IDLE_SECONDS
        return is_idle or now - self._wanted_since > TURN_SECONDS


class Requests:
    """The requests that the supervisor has sent, in their order. A thread reads them."""

    def __init__(self, stream: socket.socket) -> None:
        self.withdrawn_ids: set[str] = set()
        """The requests whose clients have gone."""
        self.slot = Slot()
        self._stream = stream
        self._incoming_requests: queue.SimpleQueue[ServingRequest] = queue.SimpleQueue()
        self._waiting_requests: deque[ServingRequest] = deque()
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def next_batch(self, limit: int) -> list[ServingRequest]:
        """Waits a moment for a request. Returns the request, and waiting requests that can be in the same batch."""
        if not self._waiting_requests:
            try:
                self._waiting_requests.append(self._incoming_requests.get(timeout=LOOK_SECONDS))
            except queue.Empty:
                return []
        while not self._incoming_requests.empty():
            self._waiting_requests.append(self._incoming_requests.get())
        return take_batch(self._waiting_requests, limit)

    def _read(self) -> None:
        incomplete_line = b""
        while chunk := self._stream.recv(READ_BYTES):
            *lines, incomplete_line = (incomplete_line + chunk).split(b"\n")
            for line in lines:
                try:
                    self._read_line(line)
                except ValidationError as error:
                    # This thread must go on, because without it the session would answer no further request.
                    log.warning("ignores a line that is not a request: %s", error)

    def _read_line(self, line: bytes) -> None:
        try:
            self._incoming_requests.put(ServingRequest.model_validate_json(line))
        except ValidationError:
            withdrawn_id = AnswerPiece.model_validate_json(line).id
            if withdrawn_id == SLOT_WANTED:
                self.slot.wanted(time.monotonic())
            else:
                self.withdrawn_ids.add(withdrawn_id)


def _batch_key(request: ServingRequest) -> Any:
    """Returns a value that is equal for requests that may share a batch, or None for a request that may not share."""
    body = request.body
    if request.work is not Work.COMPLETE or body.get("seed") is not None:
        return None
    return request.adapter, body["temperature"], body["top_p"]


def take_batch(waiting_requests: deque[ServingRequest], limit: int) -> list[ServingRequest]:
    """Takes the first request, and others that can be in the same batch if all together have at most `limit` texts."""
    first_request = waiting_requests.popleft()
    key, batch, room = _batch_key(first_request), [first_request], limit - _texts_of(first_request)
    for request in list(waiting_requests):
        if key is not None and _batch_key(request) == key and _texts_of(request) <= room:
            batch.append(request)
            room -= _texts_of(request)
            waiting_requests.remove(request)
    return batch


def _texts_of(request: ServingRequest) -> int:
    """Returns the number of texts that a request generates. Any other work counts as one."""
    return len(request.body.get("prompts") or "1") * int(request.body.get("n") or 1)


def serve(spec: JobSpec, parts: Parts, trainer: Trainer, order: Order, emit: Emit, stream_fd: int | None) -> DoneData:
    """Runs the whole session. `stream_fd` is the socket with the requests, which the supervisor has opened."""
    assert stream_fd is not None
    load_checkpoint(spec, trainer, order, emit)
    with socket.socket(fileno=stream_fd) as stream:
        session = Session(spec, parts, trainer, order, emit, stream)
        emit.report_running()
        return session.run()


class Session:
    """Answers requests until it is stopped, or until none has come for the idle time."""

    def __init__(
        self, spec: JobSpec, parts: Parts, trainer: Trainer, order: Order, emit: Emit, stream: socket.socket
    ) -> None:
        assert spec.serve is not None
        model = trainer._footplate.strategy.prepare_for_evaluation(trainer.model)
        model.eval()
        self.model = LoadedModel(spec, spec.serve, trainer, model, parts.processor)
        self._limits, self._emit, self._stream = spec.serve, emit, stream
        self._base, self._texts = SharedBase(model, order.files), Texts(self.model)
        self._predictions = Predictions(self.model, self._texts, order.roots)
        self._requests = Requests(stream)
        self._answer_count = self._token_count = 0
        self._ticked_at = 0.0
        self._has_lost_gpu = False

    def run(self) -> DoneData:
        # The job's seed has set the generators. With it, each session would draw the same texts.
        torch.seed()
        self._send(AnswerPiece(id="", kind=AnswerPieceKind.ALIVE))
        started_at, last_work_at = time.monotonic(), None
        while not self._emit.asked_to_stop():
            batch = self._requests.next_batch(self._limits.max_batch)
            self.tick()
            if batch:
                self._answer(batch)
                last_work_at = time.monotonic()
            if self._has_lost_gpu:
                self._emit.note("the GPU refuses further work after an error, so the session ends. "
                                "Its next request opens a new one")  # fmt: skip
                return self._end(Ending.FINISHED, Reason.COMPLETED)
            now = time.monotonic()
            if now - (last_work_at or started_at) > self._limits.idle:
                self._emit.note(f"no request came for {self._limits.idle:g} s, so the session ends")
                return self._end(Ending.FINISHED, Reason.COMPLETED)
            if self._requests.slot.must_be_free(now, last_work_at):
                self._emit.note(
                    "another job waits for this slot, so the session ends. Its next request opens a new one"
                )
                return self._end(Ending.FINISHED, Reason.COMPLETED)
        return self._end(Ending.STOPPED, Reason.CANCEL)

    def tick(self) -> None:
        """Reports that the process works, at most once a second."""
        if time.monotonic() - self._ticked_at > 1.0:
            self._ticked_at = time.monotonic()
            self._emit.event_socket.send(TICK, {})

    def _answer(self, batch: Sequence[ServingRequest]) -> None:
        try:
            self._base.use(batch[0].adapter)
        except Exception as error:
            # The requests are sent to another session, which loads only this adapter.
            self._emit.note(f"cannot load the adapter of another checkpoint: {error}")
            for request in batch:
                self._send(AnswerPiece(id=request.id, kind=AnswerPieceKind.AGAIN))
            return
        open_requests = [request for request in batch if request.id not in self._requests.withdrawn_ids]
        for request in batch:
            is_wanted = request in open_requests
            self._send(AnswerPiece(id=request.id, kind=AnswerPieceKind.STARTED if is_wanted else AnswerPieceKind.ERROR))
        try:
            if open_requests:
                self._answer_together(open_requests)
        except Exception as error:
            # One request must not end the session of all others.
            refusal = _refusal(error)
            for request in open_requests:
                self.say(request.id, AnswerPieceKind.ERROR, refusal)
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            # After such an error, such as a failed assertion in a kernel, every call in this process fails.
            self._has_lost_gpu = isinstance(error, torch.AcceleratorError)
        self._requests.withdrawn_ids.difference_update(request.id for request in batch)

    def say(self, request: str, kind: AnswerPieceKind, data: dict[str, Any]) -> None:
        self._send(AnswerPiece(id=request, kind=kind, data=data))

    def is_withdrawn(self, request: str) -> bool:
        return request in self._requests.withdrawn_ids

    def _answer_together(self, batch: Sequence[ServingRequest]) -> None:
        request = batch[0]
        if request.work is Work.COMPLETE:
            self._token_count += self._texts.answer(batch, self)
        elif request.work is Work.PREDICT:
            self.say(request.id, AnswerPieceKind.DONE, self._predictions.answer(request, self))
        else:
            self.say(request.id, AnswerPieceKind.DONE, embed(self.model, request, self))
        self._answer_count += len(batch)

    def _send(self, piece: AnswerPiece) -> None:
        line = json.dumps(json_safe(piece.model_dump(mode="json")), separators=(",", ":")).encode()
        if len(line) > MAX_PIECE_BYTES:
            size = f"{len(line) // 2**20} MiB, and {MAX_PIECE_BYTES // 2**20} MiB is the limit"
            refusal = {"code": "answer_too_large", "message": f"the answer has {size}", "hint": "send fewer inputs"}
            line = AnswerPiece(id=piece.id, kind=AnswerPieceKind.ERROR, data=refusal).model_dump_json().encode()
        self._stream.sendall(line + b"\n")

    def _end(self, ending: Ending, reason: Reason) -> DoneData:
        return DoneData(
            ending=ending, reason=reason, result={"requests": self._answer_count, "tokens": self._token_count}
        )


def _refusal(error: Exception) -> dict[str, Any]:
    """Returns the error that the client of a request reads."""
    if isinstance(error, torch.OutOfMemoryError):
        return {"code": "out_of_memory", "message": str(error).partition("\n")[0][:300], "hint": "send fewer inputs"}
    if isinstance(error, FootplateError):
        return {"code": error.code, "message": error.message, "hint": error.hint}
    text = " ".join(str(error).split())[:500]
    message = f"the model cannot take these inputs: {type(error).__name__}: {text}"
    return {"code": CannotAnswer.code, "message": message, "hint": "send rows with the columns of the job's data"}
