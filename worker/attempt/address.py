"""Where other nodes reach this one, and a place there for the ranks of a job on several nodes to meet."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from footplate.contract.errors import SettingsError
from footplate.contract.host.launch import HERE
from worker.settings import WorkerSettings

SIOCGIFADDR = 0x8915


def own_address(settings: WorkerSettings) -> str:
    """As the operator says; else the address from which this node speaks to Redis, which others reach as well."""
    return settings.node_address or _towards(settings.redis)


def _towards(url: str) -> str:
    """Nothing is sent: the kernel looks for the way, and the address at this end of it is ours."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        with suppress(OSError):
            found = socket.getaddrinfo(parts.hostname or HERE, parts.port or 6379, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, at = found[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(at)
                return str(probe.getsockname()[0])
    return HERE


def require_own(settings: WorkerSettings) -> None:
    """Raises SettingsError where FOOTPLATE_NODE_ADDRESS is no address of this machine."""
    if settings.node_address:
        try:
            _bound(settings.node_address).close()
        except OSError as error:
            raise SettingsError(
                f"FOOTPLATE_NODE_ADDRESS={settings.node_address} is no address of this machine ({error}): name one "
                "that other nodes reach, or leave it out for the one that leads to Redis"
            ) from None


@contextmanager
def meeting_place(address: str) -> Iterator[socket.socket]:
    """A socket with a port of its own, which the kernel chooses. It is bound before anybody is told where it is, so
    nobody else can be there; it does not listen before somebody needs it."""
    try:
        bound = _bound(address)
    except OSError:
        # The address went away, and with it the way to others: alone, this node still works.
        bound = _bound(HERE)
    with bound:
        yield bound


def _bound(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.bind((address, 0))
    except OSError:
        made.close()
        raise
    return made


def said(meeting: socket.socket) -> str:
    """host:port, as other nodes are told."""
    host, port, *_ = meeting.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(meets_at: str) -> tuple[str, int]:
    host, _, port = meets_at.rpartition(":")
    return host.strip("[]"), int(port)


def leads_there(own: str, host: str) -> bool:
    """Whether a node at `own` can come to `host`: a loopback address is this very machine, for whoever says it."""
    return _is_loopback(own) == _is_loopback(host)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def interface_of(address: str) -> str | None:
    """The network interface that has it: gloo and NCCL are told by name. None: not known, and theirs is the guess."""
    with suppress(OSError, ValueError):
        if ":" in address:
            return _of_six(address)
        wanted = socket.inet_aton(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
            for _, name in socket.if_nameindex():
                with suppress(OSError):
                    told = fcntl.ioctl(asks, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                    if told[20:24] == wanted:
                        return name
    return None


def _of_six(address: str) -> str | None:
    wanted = ipaddress.IPv6Address(address.partition("%")[0]).packed.hex()
    with open("/proc/net/if_inet6") as table:
        return next((line.split()[5] for line in table if line.split()[0] == wanted), None)
