"""The requests to a serving session, and the pieces of their answers.

    API  -> Redis list -> supervisor's thread -> socket -> serving process
    API  <- Redis list <- supervisor's thread <- socket <- serving process

Requests and answers are not stored in SQL. If Redis or the session loses one, its client gets an error and may send the
request again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from footplate.contract.fields import InternalMessage

SLOT_WANTED = ""
"""An entry in the list of withdrawn requests that is not an id. It means that another job waits for the session's
slot."""
WANTED_SECONDS = 15.0
"""The time for which SLOT_WANTED is valid. Control sends it every five seconds while the other job waits."""

MAX_PIECE_BYTES = 16 * 1024 * 1024
"""The largest piece of an answer, as JSON."""
ALIVE_SECONDS = 5.0
"""The interval at which a session reports each request that it works on, also if there is nothing new to read."""
SILENCE_SECONDS = 4 * ALIVE_SECONDS
"""The time without a piece of a started answer after which the answer counts as lost."""


class Work(StrEnum):
    PREDICT = "predict"
    """Runs the model on rows, as an evaluation does."""
    COMPLETE = "complete"
    """Generates text after a prompt or a conversation."""
    EMBED = "embed"
    """Returns a vector for each text."""


class AdapterOffer(InternalMessage):
    """A checkpoint with an adapter, which the session loads beside its own. `path` is relative to the store's root."""

    id: str
    path: str
    manifest_sha256: str


class ServingRequest(InternalMessage):
    id: str
    work: Work
    body: dict[str, Any]
    adapter: AdapterOffer | None = None
    """The adapter that answers. None: the session's own checkpoint answers."""


class AnswerPieceKind(StrEnum):
    STARTED = "started"
    """The process works on the request. A request that is not started may be sent to another session."""
    ALIVE = "alive"
    CHUNK = "chunk"
    """A part of a streamed answer."""
    DONE = "done"
    """The last piece: the whole answer, or the end of a streamed one."""
    ERROR = "error"
    """The last piece: a code and a message."""
    AGAIN = "again"
    """The last piece: the session ended before it started this request."""


class AnswerPiece(InternalMessage):
    id: str
    kind: AnswerPieceKind
    data: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        return self.kind in (AnswerPieceKind.DONE, AnswerPieceKind.ERROR, AnswerPieceKind.AGAIN)
