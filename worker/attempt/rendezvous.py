"""The rendezvous of an attempt's ranks: its address, and how this node reaches it.

The address depends on the number of nodes.

    one node        a port on loopback, chosen by the kernel while the ranks are started
    several nodes   the port that the first node bound with its claim, once control reports that every node has claimed
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from footplate.contract.errors import SettingsError
from footplate.contract.events import Failure
from footplate.contract.host.launch import LOOPBACK
from footplate.contract.host.outcome import Verdict
from footplate.contract.lifecycle import Reason
from footplate.contract.messages import Grant
from worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class RendezvousAddress:
    """The address at which the ranks of an attempt connect to each other."""

    host: str = LOOPBACK
    port: int | None = None
    """The port. None if the attempt has only one rank."""
    interface: str | None = None
    """The network interface towards the other nodes."""
    listening: socket.socket | None = None
    """The listening socket, at which the first rank serves torch's TCPStore to the others."""


NO_RENDEZVOUS = RendezvousAddress()


class Rendezvous:
    """The rendezvous of one attempt's ranks on this node. It is open at once if the job has only one node."""

    def __init__(self, grant: Grant, claim_socket: socket.socket | None) -> None:
        """Takes the socket that this node bound for its claim. Other nodes connect to it if this is the first node."""
        self._is_first, self._has_several_nodes = grant.source == 0, grant.nodes > 1
        self._claimed, self._address = claim_socket, grant.rendezvous

    def open(self, address: str | None) -> None:
        """Sets the address that control reports. Later addresses are ignored."""
        self._address = self._address or address

    @property
    def is_open(self) -> bool:
        """True once every node has claimed, so that ranks can be started."""
        return not self._has_several_nodes or self._address is not None

    def trouble(self, node: str) -> Verdict | None:
        """Returns why ranks of this node cannot reach the rendezvous, or None if they can."""
        if not self._has_several_nodes or self._address is None or self._claimed is None:
            return None
        address, (host, _) = self._claimed.getsockname()[0], host_and_port(self._address)
        if can_reach(address, host):
            return None
        text = (
            f"the ranks cannot connect: node {node} has the address {address}, and the first node of this job has "
            f"{host}, but a loopback address is valid on one machine only"
        )
        hint = "set FOOTPLATE_NODE_ADDRESS, on the node with a loopback address, to one that the other nodes can reach"
        return Verdict(Reason.NOT_BUILDABLE, Failure(code="unreachable_node", message=text, hint=hint))

    @contextmanager
    def address(self) -> Iterator[RendezvousAddress]:
        """Yields the address while ranks are started, and closes this process's socket afterwards.

        Then only the first rank has the socket, so that connections are refused once that rank is dead.
        """
        if not self._has_several_nodes:
            with bound_socket(LOOPBACK) as server:
                server.listen()
                yield RendezvousAddress(LOOPBACK, server.getsockname()[1], None, server)
            return
        assert self._address is not None
        assert self._claimed is not None
        host, port = host_and_port(self._address)
        if self._is_first:
            self._claimed.listen()
        interface = interface_of(self._claimed.getsockname()[0])
        yield RendezvousAddress(host, port, interface, self._claimed if self._is_first else None)
        self._claimed.close()


# ── Addresses ──────────────────────────────────────────────────────────────────────────────────────────────────────


def own_address(settings: WorkerSettings) -> str:
    """Returns FOOTPLATE_NODE_ADDRESS, or the address from which this node connects to Redis."""
    return settings.node_address or _address_towards(settings.redis)


def _address_towards(url: str) -> str:
    """Returns the address from which the kernel would send to a URL's host. Nothing is sent."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        with suppress(OSError):
            addresses = socket.getaddrinfo(parts.hostname or LOOPBACK, parts.port or 6379, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, target = addresses[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
    return LOOPBACK


def require_own(settings: WorkerSettings) -> None:
    """Raises SettingsError if FOOTPLATE_NODE_ADDRESS is not an address of this machine."""
    if settings.node_address:
        try:
            _bind(settings.node_address).close()
        except OSError as error:
            raise SettingsError(
                f"FOOTPLATE_NODE_ADDRESS={settings.node_address} is not an address of this machine ({error}). Set it "
                "to one that other nodes reach, or remove it to use the address from which this node connects to Redis."
            ) from None


@contextmanager
def bound_socket(address: str) -> Iterator[socket.socket]:
    """Yields a socket that is bound to a free port, so that no other process gets the port after it was announced."""
    try:
        bound = _bind(address)
    except OSError:
        # This machine has lost the address. Jobs on several nodes fail now, but jobs on this node alone work.
        bound = _bind(LOOPBACK)
    with bound:
        yield bound


def _bind(address: str) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.bind((address, 0))
    except OSError:
        bound.close()
        raise
    return bound


def address_text(bound: socket.socket) -> str:
    """Returns a socket's own address as `host:port`, with brackets for IPv6."""
    host, port, *_ = bound.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def can_reach(address: str, host: str) -> bool:
    """Returns False if only one of two addresses is a loopback address, because that reaches its own machine only."""
    return _is_loopback(address) == _is_loopback(host)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def interface_of(address: str) -> str | None:
    """Returns the name of the network interface with this address, for Gloo and NCCL. None: these choose themselves."""
    return next(
        (
            name
            for name, entries in psutil.net_if_addrs().items()
            if any(entry.address.partition("%")[0] == address.partition("%")[0] for entry in entries)
        ),
        None,
    )
