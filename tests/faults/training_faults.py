"""A callback that damages its own training as a user's code or a broken machine might.

    system.submit(training_faults.toy("segfault", folder / "a", steps=[5]))

Before a fault, the callback writes a marker file with the number of the step as its name, so that a test knows the
moment. A later attempt repeats the fault only with `always`. `System` registers the callback.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.trainer.callbacks import TrainerCallback

if TYPE_CHECKING:
    from tests.support.system import JSON


def toy(do: str, markers: Path, *, steps: list[int], always: bool = False) -> JSON:
    """Returns the spec of a small job with this fault. Its items take time, so that a test can act during a step."""
    args = {"do": do, "markers": str(markers), "steps": steps, "always": always}
    return {
        "model": "toy/mlp",
        "data": {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.002}},
        "callbacks": [{"use": "test/training_fault", "args": args}],
        "training": {"max_steps": 20, "per_device_train_batch_size": 8, "logging_steps": 1, "save_strategy": "no"},
    }


class TrainingFault(TrainerCallback):
    """Injects the fault at the end of these steps."""

    def __init__(self, do: str, markers: str, steps: list[int], always: bool = False) -> None:
        self.do, self.markers, self.steps, self.always = FAULTS[do], Path(markers), steps, always

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        trace = self.markers / str(step)
        if step in self.steps and (self.always or not trace.exists()):
            self.markers.mkdir(parents=True, exist_ok=True)
            trace.touch()
            self.do(self.markers)


def _memory_error(markers: Path) -> None:
    raise MemoryError


def _cuda_error(markers: Path) -> None:
    """Raises torch's error for a full GPU, without needing a GPU."""
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _out_of_address_space(markers: Path) -> None:
    """Makes the allocator fail, because the address space is limited."""
    import torch

    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
    torch.empty(1 << 28).fill_(1.0)


def _out_of_cgroup(markers: Path) -> None:
    """Lets the kernel's OOM killer kill this process first, because the memory of the node's cgroup is limited."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    limit_memory(Path((markers / "cgroup").read_text()), 64 << 20)
    hoard = []
    while True:
        hoard.append(b"x" * (1 << 20))


def limit_memory(cgroup: Path, more_bytes: int | None) -> None:
    """Limits the cgroup to this much more memory than it uses now. None removes the limit."""
    is_new = (cgroup / "memory.max").exists()
    limit, usage = ("memory.max", "memory.current") if is_new else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    no_limit = "max" if is_new else "-1"
    text = no_limit if more_bytes is None else str(int((cgroup / usage).read_text()) + more_bytes)
    (cgroup / limit).write_text(text)


def memory_cgroup() -> Path | None:
    """Returns a folder in which a test can make a cgroup with a memory limit, or None."""
    roots = {"memory": Path("/sys/fs/cgroup/memory"), "": Path("/sys/fs/cgroup")}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        here = roots.get(controllers, Path("/nowhere")) / path.lstrip("/")
        # In cgroup v2 a group that has processes cannot have limited subgroups, so the parent folder is used.
        room = here if controllers else here.parent
        if os.access(room / "cgroup.procs", os.W_OK) and (controllers or _hands_down_memory(room)):
            return room
    return None


def _hands_down_memory(room: Path) -> bool:
    control = room / "cgroup.subtree_control"
    return control.exists() and "memory" in control.read_text().split()


def _sys_exit(markers: Path) -> None:
    sys.exit(3)


def _hang(markers: Path) -> None:
    """Hangs, and marks but ignores SIGTERM, like the two child processes that it starts."""
    signal.signal(signal.SIGTERM, lambda *_: (markers / "term").touch())
    _start_children(markers)
    while True:
        time.sleep(1)


def _start_children(markers: Path) -> None:
    """Starts a process in training's process group, and a process in its own session. Both ignore SIGTERM."""
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    for own_session in (False, True):
        child = subprocess.Popen([sys.executable, "-S", "-c", code, str(markers)], start_new_session=own_session)
        (markers / f"child-{child.pid}").touch()


def children(markers: Path) -> list[int]:
    """Returns the pids of all processes that `_hang` has started with this folder of marker files."""
    return sorted(int(child.name.removeprefix("child-")) for child in markers.glob("child-*"))


def _segfault(markers: Path) -> None:
    ctypes.string_at(0)


FLOOD = 20_000
"""The number of events, and also of lines."""


def _flood(markers: Path) -> None:
    """Sends and prints as fast as possible many events, one of which has ten megabytes, and many lines."""
    import gc

    from footplate.runtime.emit import Emit

    event_socket = next(candidate for candidate in gc.get_objects() if isinstance(candidate, Emit)).event_socket
    event_socket.send("log", {"huge": "x" * 10_000_000})
    for n in range(FLOOD):
        event_socket.send("log", {"n": n})
    for n in range(FLOOD):
        print(n, "x" * 100)


FAULTS: dict[str, Callable[[Path], None]] = {
    "flood": _flood,
    "memory error": _memory_error,
    "cuda error": _cuda_error,
    "rlimit": _out_of_address_space,
    "cgroup": _out_of_cgroup,
    "sys.exit": _sys_exit,
    "os._exit": lambda markers: os._exit(4),
    "segfault": _segfault,
    "kill": lambda markers: os.kill(os.getpid(), signal.SIGKILL),
    "hang": _hang,
    "children": _start_children,
}
