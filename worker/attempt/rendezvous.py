"""Where the ranks of one attempt come together, as their supervisor sees it.

one node        at a port of its own, on loopback, while they are started
several nodes   at the port that the first one's claim has bound, once control has said that all have claimed
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from footplate.contract.events import Failure
from footplate.contract.host.launch import HERE
from footplate.contract.host.outcome import Verdict
from footplate.contract.lifecycle import Reason
from footplate.contract.messages import Grant
from worker.attempt.address import host_and_port, interface_of, leads_there, meeting_place


@dataclass(frozen=True, slots=True)
class Place:
    """What each rank is told of it."""

    host: str = HERE
    port: int | None = None
    """None: there is nobody to meet."""
    interface: str | None = None
    """By which this node speaks to the others."""
    listening: socket.socket | None = None
    """For the first rank, which keeps the store there."""


NOWHERE = Place()


class Meeting:
    def __init__(self, grant: Grant, claimed: socket.socket | None) -> None:
        """`claimed` is bound on this node, and was told with its claim: the first of several nodes is met there."""
        self._is_first, self._several = grant.source == 0, grant.nodes > 1
        self._claimed, self._at = claimed, grant.meets_at

    def hear(self, meets_at: str | None) -> None:
        self._at = self._at or meets_at

    @property
    def is_open(self) -> bool:
        """Whether ranks can be started: not before every node has claimed."""
        return not self._several or self._at is not None

    def trouble(self, node: str) -> Verdict | None:
        """Why ranks of this node cannot come there."""
        if not self._several or self._at is None or self._claimed is None:
            return None
        own, (host, _) = self._claimed.getsockname()[0], host_and_port(self._at)
        if leads_there(own, host):
            return None
        text = f"node {node} is at {own}, and the first node of this job at {host}: that way no rank comes to the other"
        hint = "set FOOTPLATE_NODE_ADDRESS, on the node that says a loopback address, to one that the others reach"
        return Verdict(Reason.NOT_BUILDABLE, Failure(code="unreachable_node", message=text, hint=hint))

    @contextmanager
    def place(self) -> Iterator[Place]:
        """While ranks are started. Afterwards the first rank alone has the socket: who comes once it died hears so."""
        if not self._several:
            with meeting_place(HERE) as own:
                own.listen()
                yield Place(HERE, own.getsockname()[1], None, own)
            return
        assert self._at is not None
        assert self._claimed is not None
        host, port = host_and_port(self._at)
        if self._is_first:
            self._claimed.listen()
        interface = interface_of(self._claimed.getsockname()[0])
        yield Place(host, port, interface, self._claimed if self._is_first else None)
        self._claimed.close()
