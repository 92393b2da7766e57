"""Runs a serving session in this process with random weights, without a node or a checkpoint."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from footplate.contract.host.launch import Order
from footplate.contract.ids import ClaimId, Fence, new_job_id
from footplate.contract.serving import SLOT_WANTED, AdapterOffer, AnswerPiece, AnswerPieceKind, ServingRequest, Work
from footplate.contract.spec import JobSpec
from footplate.runtime import run
from footplate.runtime.build import build
from footplate.runtime.emit import Emit, EventSocket
from footplate.runtime.serving.session import Session

NOWHERE = {"resume_from": {"job": "job_" + "0" * 32, "mode": "weights"}}


class ServedModel:
    """A serving session, with the supervisor's end of its socket."""

    def __init__(self, stream: socket.socket, session: Session, thread: threading.Thread) -> None:
        self.session, self.model, self.thread = session, session.model, thread
        self._stream, self._file = stream, stream.makefile("rb")
        self._count = 0

    def send(self, work: str, adapter: AdapterOffer | None = None, **body: Any) -> str:
        self._count += 1
        request = ServingRequest(id=f"ask_{self._count}", work=Work(work), body=body, adapter=adapter)
        self._stream.sendall(request.model_dump_json().encode() + b"\n")
        return request.id

    def withdraw(self, request: str) -> None:
        self._stream.sendall(AnswerPiece(id=request, kind=AnswerPieceKind.AGAIN).model_dump_json().encode() + b"\n")

    def want_slot(self) -> None:
        """Sends the message that the supervisor sends while another job waits for the session's slot."""
        self.withdraw(SLOT_WANTED)

    def read(self) -> AnswerPiece:
        return AnswerPiece.model_validate_json(self._file.readline())

    def last(self, request: str) -> AnswerPiece:
        """Returns the last piece of the answer to this request."""
        while True:
            piece = self.read()
            if piece.id == request and piece.is_last:
                return piece

    def ask(self, work: str, **body: Any) -> dict[str, Any]:
        piece = self.last(self.send(work, **body))
        assert piece.kind is AnswerPieceKind.DONE, piece
        return piece.data

    def predict(self, *inputs: Any, **parameters: Any) -> list[dict[str, Any]]:
        sampling = {"temperature": 0.0, "top_p": 1.0, **parameters}
        return list(self.ask("predict", inputs=list(inputs), parameters=sampling)["predictions"])

    def refusal(self, work: str, **body: Any) -> dict[str, Any]:
        piece = self.last(self.send(work, **body))
        assert piece.kind is AnswerPieceKind.ERROR, piece
        return piece.data


@contextmanager
def served(folder: Path, spec: dict[str, Any], **serve: Any) -> Iterator[ServedModel]:
    """Runs a session until the block ends, with a model of this spec."""
    parsed = JobSpec.parse({**NOWHERE, **spec, "serve": serve})
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    stop = os.memfd_create("stop")
    os.ftruncate(stop, mmap.PAGESIZE)
    events, wire_end = socket.socketpair()
    order = Order(
        job=new_job_id(), attempt=1, fence=Fence(1), claim=ClaimId("claim"), spec={}, gpus=[], checkpoints=[],
        artifacts=folder, data=folder, models=folder, threads=1,
    )  # fmt: skip
    emit = Emit(EventSocket(wire_end.detach()), stop, order.files)
    args = replace(parsed.training, output_dir=str(folder))
    parts = build(parsed, order.roots)
    trainer = run.assemble(parsed, parts, args, emit, {})
    session = Session(parsed, parts, trainer, order, emit, theirs)
    thread = threading.Thread(target=session.run)
    thread.start()
    client = ServedModel(ours, session, thread)
    assert client.read().kind is AnswerPieceKind.ALIVE
    try:
        yield client
    finally:
        with mmap.mmap(stop, mmap.PAGESIZE) as page:
            page[0] = 2
        thread.join(300)
        for end in (ours, theirs, events):
            end.close()
        os.close(stop)
