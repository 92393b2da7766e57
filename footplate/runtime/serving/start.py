"""Starts a serving session: loads the checkpoint into the model of the spec, and answers until the session ends."""

from __future__ import annotations

import socket

from footplate.contract.errors import NotBuildable
from footplate.contract.events import DoneData, Kind, StateData
from footplate.contract.host.launch import Order
from footplate.contract.spec import JobSpec
from footplate.runtime.build import Parts
from footplate.runtime.emit import Emit
from footplate.runtime.serving.embeddings import Embeddings
from footplate.runtime.serving.loaded import Loaded
from footplate.runtime.serving.predictions import Predictions
from footplate.runtime.serving.session import Session
from footplate.runtime.serving.shared_base import SharedBase
from footplate.runtime.serving.texts import Texts
from footplate.runtime.starting_point import find_starting_point
from footplate.trainer.trainer import Trainer


def serve(spec: JobSpec, parts: Parts, trainer: Trainer, order: Order, emit: Emit, stream_fd: int | None) -> DoneData:
    """Runs the whole session. `stream_fd` is the socket with the requests."""
    if stream_fd is None or spec.serve is None:
        raise NotBuildable("a serving session needs the socket of its requests", hint="upgrade this node")
    start = find_starting_point(spec, order, emit)
    if start is None:
        raise NotBuildable("a serving session needs a checkpoint", hint="name one in resume_from")
    start.load(trainer)
    with socket.socket(fileno=stream_fd) as stream:
        session, answers = session_of(spec, parts, trainer, order, emit, stream)
        emit.wire.send(Kind.STATE, StateData(state="running").model_dump(exclude_none=True))
        return session.run(*answers)


def session_of(
    spec: JobSpec, parts: Parts, trainer: Trainer, order: Order, emit: Emit, stream: socket.socket
) -> tuple[Session, tuple[Predictions, Texts, Embeddings]]:
    """Returns a session that reads from this socket, and the parts that answer its requests."""
    assert spec.serve is not None
    model = trainer._footplate.strategy.prepare_for_evaluation(trainer.model)
    model.eval()
    loaded = Loaded(spec, spec.serve, trainer, model, parts.processor)
    texts = Texts(loaded)
    session = Session(spec.serve, emit, stream, SharedBase(model, order.files))
    return session, (Predictions(loaded, texts, order.roots), texts, Embeddings(loaded))
