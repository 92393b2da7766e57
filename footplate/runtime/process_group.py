"""Prepares a rank to find the other ranks, with the environment variables that torchrun sets.

So torch, Accelerate, DeepSpeed and scripts for a launcher find the ranks as they do under torchrun. The supervisor has
bound the port already and passes the socket to the first rank, so no other process can take the port. All ranks,
including the first, connect to the port as clients, as they connect to torchrun's agent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from footplate.contract.host import outcome
from footplate.contract.host.launch import Order
from footplate.trainer.launcher import Place
from footplate.trainer.strategies.peers import OneProcess, Peers

FIRST_SECONDS = 3600.0
"""The time that the other ranks wait for the work that only the first rank does."""
_DONE = "footplate/first"
_store: Any = None
"""Torch's store, which the first rank serves until its process ends."""


def join(order: Order, store_fd: int | None = None) -> None:
    """Sets torchrun's variables. The first rank, which inherits the bound socket `store_fd`, serves torch's store."""
    global _store
    if order.port is None:
        return
    os.environ.update(environment(order))
    # Libraries that build code find their tools, such as ninja, beside this interpreter.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if store_fd is not None:
        import torch.distributed as dist

        _store = dist.TCPStore(  # type: ignore[attr-defined]
            order.host, order.port, order.world, is_master=True, wait_for_workers=False, master_listen_fd=store_fd
        )


def run_on_first_rank(order: Order, work: Callable[[], None]) -> None:
    """Runs `work` on the first rank while the others wait. Opens no process group, because users' code does that."""
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


def peers(order: Order, backend: str | None, timeout_seconds: float) -> OneProcess:
    """Returns the communication with the other ranks. Opens a process group, unless one is open already."""
    if order.world == 1:
        return OneProcess()
    device = torch.device("cuda" if order.gpus else "cpu")
    return Peers(Place.here(), backend, timedelta(seconds=timeout_seconds), device)


def is_caused_by_another_rank(error: BaseException) -> bool:
    """Returns True if a note of the Trainer or the kind of torch's error shows that another rank had failed before."""
    noted = any(" failed before this one" in note for note in getattr(error, "__notes__", ()))
    return noted or outcome.lost_a_peer(error)


def environment(order: Order) -> dict[str, str]:
    """Returns the variables of this rank. They contain the first node's address, because its name may not resolve."""
    variables = {
        "RANK": str(order.rank),
        "LOCAL_RANK": str(order.local_rank),
        "WORLD_SIZE": str(order.world),
        "LOCAL_WORLD_SIZE": str(order.local_world),
        "GROUP_RANK": str(order.node),
        "GROUP_WORLD_SIZE": str(order.nodes),
        "MASTER_ADDR": order.host,
        "MASTER_PORT": str(order.port),
        # Without this, Accelerate would compute its own share of the machine's cores.
        "OMP_NUM_THREADS": str(order.threads),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        **_interfaces(order),
    }
    # DeepSpeed detects its accelerator without torch, so it needs a variable that says that this job has no GPU.
    return variables if order.gpus else {**variables, "DS_ACCELERATOR": "cpu"}


def _interfaces(order: Order) -> dict[str, str]:
    """Returns the network interfaces for Gloo and NCCL. Variables that the operator has set are kept."""
    if order.nodes == 1:
        return {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    names = ("GLOO_SOCKET_IFNAME", *(["NCCL_SOCKET_IFNAME"] if order.gpus else []))
    return {name: order.interface for name in names if order.interface is not None and name not in os.environ}
