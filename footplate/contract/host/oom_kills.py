"""Finds out whether the kernel's OOM killer ended a process.

The exit code is the same as after `kill -9`. The kernel counts each OOM kill in the cgroup of the killed process. A
node in a container or a systemd unit has a cgroup of its own. If the cgroup has no such count, the count of the whole
machine is read.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OomCount:
    """The number of OOM kills, and the file in which the kernel counts them."""

    source: Path
    kills: int


class OomKills:
    """Counts the OOM kills among this process and its children. One kill explains the end of one child."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._explained: Counter[Path] = Counter()
        """The kills that explain the end of a child, by the file that counts them."""

    def unexplained(self) -> OomCount:
        """Returns the number of OOM kills that are not yet assigned to a child that ended."""
        source = _source(self._root)
        return OomCount(source, _kills(source) - self._explained[source])

    def explain(self, earlier_count: OomCount) -> bool:
        """Returns True if the end of a child was an OOM kill. The child must have ended by SIGKILL.

        `earlier_count` is the count at which the child was forked.
        """
        present_count = self.unexplained()
        is_oom_kill = present_count.source == earlier_count.source and present_count.kills > earlier_count.kills
        self._explained[present_count.source] += is_oom_kill
        return is_oom_kill


def _source(root: Path) -> Path:
    """Returns the file that counts the OOM kills in this process's cgroup, or else in the whole machine."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            # In /proc/self/cgroup, only version 1 of cgroups names controllers. Each version counts in another file.
            mount, name = ("memory", "memory.oom_control") if controllers else ("", "memory.events")
            top = root / "sys/fs/cgroup" / mount
            cgroup = top / path.lstrip("/")
            # A container sees its own cgroup at the top, but version 1 still names the path on the host. In version 2,
            # a cgroup without the memory controller is counted in the nearest parent that has it.
            for folder in (cgroup, *cgroup.parents):
                if (folder / name).is_file():
                    return folder / name
                if folder == top:
                    break
    return root / "proc/vmstat"


def _kills(source: Path) -> int:
    with suppress(OSError, ValueError):
        for line in source.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
