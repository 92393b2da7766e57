"""Tests which OOM kills are counted as a cause of the end of a training process."""

from __future__ import annotations

from pathlib import Path

import pytest

from footplate.contract.host.oom_kills import OomKills

OWN = "sys/fs/cgroup/memory/node/memory.oom_control"
LAYOUTS = {
    "version 1": ("9:cpu:/\n4:memory:/node\n0::/\n", OWN),
    "version 1 in a container": ("4:memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.oom_control"),
    "version 2": ("0::/node\n", "sys/fs/cgroup/node/memory.events"),
    "version 2 in a container": ("0::/\n", "sys/fs/cgroup/memory.events"),
    "version 2, counted by a parent": ("0::/node/worker\n", "sys/fs/cgroup/node/memory.events"),
    "no cgroups": ("", "proc/vmstat"),
}


class Machine:
    """A folder in place of `/`. The process is in the cgroup `node`, and its neighbour is in `other`."""

    def __init__(self, root: Path, membership: str, own: str) -> None:
        self.root, self.own = root, own
        self.write("proc/self/cgroup", membership)
        self.other = "sys/fs/cgroup/memory/other/memory.oom_control"
        for file in {own, self.other, "proc/vmstat"}:
            self.write(file, "under_oom 0\noom_kill 45\n")

    def write(self, file: str, text: str) -> None:
        (self.root / file).parent.mkdir(parents=True, exist_ok=True)
        (self.root / file).write_text(text)

    def kills_in(self, file: str, kills: int) -> None:
        for counter in {file, "proc/vmstat"}:
            self.write(counter, f"under_oom 0\noom_kill {45 + kills}\n")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_oom_kill_in_the_nodes_own_cgroup_explains_a_killed_process(tmp_path: Path, layout: str) -> None:
    machine = Machine(tmp_path, *LAYOUTS[layout])
    oom = OomKills(tmp_path)
    before = oom.unexplained()

    assert not oom.explain(before)
    machine.kills_in(machine.own, 1)

    assert oom.explain(before)


def test_an_oom_kill_in_another_cgroup_explains_no_process_of_this_node(tmp_path: Path) -> None:
    machine = Machine(tmp_path, *LAYOUTS["version 1"])
    oom = OomKills(tmp_path)
    before = oom.unexplained()

    machine.kills_in(machine.other, 1)

    assert not oom.explain(before)


def test_one_oom_kill_explains_the_end_of_one_process_only(tmp_path: Path) -> None:
    machine = Machine(tmp_path, *LAYOUTS["version 1"])
    oom = OomKills(tmp_path)
    first, second = oom.unexplained(), oom.unexplained()

    machine.kills_in(OWN, 1)
    assert [oom.explain(first), oom.explain(second)] == [True, False]
    third = oom.unexplained()
    machine.kills_in(OWN, 3)

    assert [oom.explain(second), oom.explain(third), oom.explain(oom.unexplained())] == [True, True, False]


def test_the_kernel_counts_an_oom_kill_where_the_node_reads_it() -> None:
    before = OomKills().unexplained()

    assert before.source.is_file()
    assert "oom_kill " in before.source.read_text()
