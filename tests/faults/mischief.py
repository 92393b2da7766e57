"""A callback that damages its own training as a user's code or a broken machine might.

    system.submit(mischief.toy("segfault", folder / "a", steps=[5]))

It first writes a file named by the step into its folder, so that a test knows the moment. In a later attempt it acts
again only with `always`. `System` registers it.
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


def toy(do: str, lair: Path, *, steps: list[int], always: bool = False) -> JSON:
    """A small job with this mischief in it. Its items take time: a step is a moment that a test can meet."""
    args = {"do": do, "lair": str(lair), "steps": steps, "always": always}
    return {
        "model": "toy/mlp",
        "data": {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.002}},
        "callbacks": [{"use": "test/mischief", "args": args}],
        "training": {"max_steps": 20, "per_device_train_batch_size": 8, "logging_steps": 1, "save_strategy": "no"},
    }


class Mischief(TrainerCallback):
    """Does it at the end of these steps."""

    def __init__(self, do: str, lair: str, steps: list[int], always: bool = False) -> None:
        self.do, self.lair, self.steps, self.always = MISCHIEF[do], Path(lair), steps, always

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        trace = self.lair / str(step)
        if step in self.steps and (self.always or not trace.exists()):
            self.lair.mkdir(parents=True, exist_ok=True)
            trace.touch()
            self.do(self.lair)


def _memory_error(lair: Path) -> None:
    raise MemoryError


def _cuda_error(lair: Path) -> None:
    """Raises torch's error for a full GPU, without needing a GPU."""
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _out_of_address_space(lair: Path) -> None:
    """The allocator itself is refused."""
    import torch

    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
    torch.empty(1 << 28).fill_(1.0)


def _out_of_cgroup(lair: Path) -> None:
    """The kernel's own OOM killer: the node's cgroup gets too small, and this process is the first to be killed."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    limit_memory(Path((lair / "cgroup").read_text()), 64 << 20)
    hoard = []
    while True:
        hoard.append(b"x" * (1 << 20))


def limit_memory(cgroup: Path, more_bytes: int | None) -> None:
    """Allows this much more memory than the cgroup uses now. None: any amount."""
    is_new = (cgroup / "memory.max").exists()
    limit, usage = ("memory.max", "memory.current") if is_new else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    no_limit = "max" if is_new else "-1"
    text = no_limit if more_bytes is None else str(int((cgroup / usage).read_text()) + more_bytes)
    (cgroup / limit).write_text(text)


def memory_cgroup() -> Path | None:
    """Returns a folder in which this machine allows a cgroup with a memory limit, or None."""
    roots = {"memory": Path("/sys/fs/cgroup/memory"), "": Path("/sys/fs/cgroup")}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        here = roots.get(controllers, Path("/nowhere")) / path.lstrip("/")
        # In the second version a group that has processes hands no controller down: beside us, then.
        room = here if controllers else here.parent
        if os.access(room / "cgroup.procs", os.W_OK) and (controllers or _hands_down_memory(room)):
            return room
    return None


def _hands_down_memory(room: Path) -> bool:
    control = room / "cgroup.subtree_control"
    return control.exists() and "memory" in control.read_text().split()


def _sys_exit(lair: Path) -> None:
    sys.exit(3)


def _hang(lair: Path) -> None:
    """Does not look at the flag, notes a SIGTERM and goes on; so do the processes that it has started."""
    signal.signal(signal.SIGTERM, lambda *_: (lair / "term").touch())
    _have_children(lair)
    while True:
        time.sleep(1)


def _have_children(lair: Path) -> None:
    """One in training's group, and one that has run away from it, as a daemon does. Both are deaf to SIGTERM."""
    deaf = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    for runs_away in (False, True):
        child = subprocess.Popen([sys.executable, "-S", "-c", deaf, str(lair)], start_new_session=runs_away)
        (lair / f"child-{child.pid}").touch()


def children(lair: Path) -> list[int]:
    """Returns the pids of all children that were started for this lair."""
    return sorted(int(child.name.removeprefix("child-")) for child in lair.glob("child-*"))


def _segfault(lair: Path) -> None:
    ctypes.string_at(0)


FLOOD = 20_000
"""Events, and lines."""


def _flood(lair: Path) -> None:
    """Sends as fast as possible many events, one of them of ten megabytes, and many lines."""
    import gc

    from footplate.runtime.emit import Emit

    event_socket = next(candidate for candidate in gc.get_objects() if isinstance(candidate, Emit)).event_socket
    event_socket.send("log", {"huge": "x" * 10_000_000})
    for n in range(FLOOD):
        event_socket.send("log", {"n": n})
    for n in range(FLOOD):
        print(n, "x" * 100)


MISCHIEF: dict[str, Callable[[Path], None]] = {
    "flood": _flood,
    "memory error": _memory_error,
    "cuda error": _cuda_error,
    "rlimit": _out_of_address_space,
    "cgroup": _out_of_cgroup,
    "sys.exit": _sys_exit,
    "os._exit": lambda lair: os._exit(4),
    "segfault": _segfault,
    "kill": lambda lair: os.kill(os.getpid(), signal.SIGKILL),
    "hang": _hang,
    "children": _have_children,
}
