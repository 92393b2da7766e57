"""How a rank finds the others: by its environment, as torchrun would have told it, so that torch, Accelerate, DeepSpeed
and scripts that know a launcher need nothing else.

The supervisor has bound the port already, and the first rank is handed the socket: nobody can take it before it is
listened on. Everybody, the first rank too, then comes as a client, as they come to an agent of torchrun's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from footplate.contract.host import outcome
from footplate.contract.host.launch import Order

FIRST_SECONDS = 3600.0
"""How long the others wait for what the first rank does for all."""
_DONE = "footplate/first"
_store: Any = None
"""Of the first rank: it lasts as long as its process."""


def join(order: Order, meeting: int | None = None) -> None:
    if order.port is None:
        return
    os.environ.update(environment(order))
    # What a library builds, it builds with tools that lie beside this interpreter.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if meeting is not None:
        _keep_the_store(order, meeting)


def first(order: Order, work: Callable[[], None]) -> None:
    """What the first rank does before any other goes on. It opens no group: that is for the user's code to do."""
    if order.rank == 0:
        work()
    if order.port is None:
        return
    import torch.distributed as dist

    host, port, within = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timedelta(seconds=FIRST_SECONDS)
    store = dist.TCPStore(host, port, order.world, is_master=False, wait_for_workers=False, timeout=within)  # type: ignore[attr-defined]
    if order.rank == 0:
        store.set(_DONE, "1")
    else:
        store.wait([_DONE])


def is_another_s(error: BaseException) -> bool:
    """Whether this rank failed because another had: the Trainer then notes which one, and torch says what it saw."""
    noted = any(" failed before this one" in note for note in getattr(error, "__notes__", ()))
    return noted or outcome.lost_a_peer(error)


def environment(order: Order) -> dict[str, str]:
    """Where there is only one machine, nobody need look for it by its name, which may lead nowhere."""
    asked = {
        "RANK": str(order.rank),
        "LOCAL_RANK": str(order.local_rank),
        "WORLD_SIZE": str(order.world),
        "LOCAL_WORLD_SIZE": str(order.local_world),
        "GROUP_RANK": str(order.node),
        "GROUP_WORLD_SIZE": str(order.nodes),
        "MASTER_ADDR": order.host,
        "MASTER_PORT": str(order.port),
        # Accelerate would take a share of the machine that it works out by itself.
        "OMP_NUM_THREADS": str(order.threads),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        **_interfaces(order),
    }
    # DeepSpeed asks its own accelerator before it asks torch.
    return asked if order.gpus else {**asked, "DS_ACCELERATOR": "cpu"}


def _interfaces(order: Order) -> dict[str, str]:
    """Whatever the operator has set stays: a fast network of the nodes' own has another name than the one to Redis."""
    if order.nodes == 1:
        return {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    names = ("GLOO_SOCKET_IFNAME", *(["NCCL_SOCKET_IFNAME"] if order.gpus else []))
    return {name: order.interface for name in names if order.interface is not None and name not in os.environ}


def _keep_the_store(order: Order, meeting: int) -> None:
    global _store
    import torch.distributed as dist

    assert order.port is not None
    _store = dist.TCPStore(  # type: ignore[attr-defined]
        order.host, order.port, order.world, is_master=True, wait_for_workers=False, master_listen_fd=meeting
    )
