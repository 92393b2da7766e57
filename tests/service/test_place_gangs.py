"""Placement of jobs on several nodes: none holds a part, none starves, none keeps others waiting for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from footplate.contract.ids import JobId
from footplate.contract.lifecycle import Reason
from tests.support.placing import Waiting, job, place, room


class Yard:
    """Nodes over time: jobs that are placed hold their slots until they end."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.rooms = {f"n{number}": room(f"n{number}", count) for number, count in enumerate(slots)}
        self.running: dict[str, list[tuple[str, int]]] = {}
        self.waiting: list[Waiting] = []

    def turn(self) -> None:
        plan = place(self.waiting, list(self.rooms.values()))
        for placement in plan.placements:
            self.running[placement.job_id] = [(share.node, share.slots) for share in placement.shares]
            for node, slots in self.running[placement.job_id]:
                self._free(node, -slots)
        self.waiting = [item for item in self.waiting if item.job_id in plan.waits]

    def ends(self, job_id: str) -> None:
        for node, slots in self.running.pop(job_id):
            self._free(node, slots)

    def _free(self, node: str, slots: int) -> None:
        self.rooms[node] = replace(self.rooms[node], free_slots=self.rooms[node].free_slots + slots)
        assert 0 <= self.rooms[node].free_slots <= self.rooms[node].slots


gangs = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=8)


@given(st.lists(st.integers(1, 4), min_size=3, max_size=5), gangs, st.randoms(use_true_random=False))
def test_jobs_on_several_nodes_never_wait_for_each_other_for_ever(slots, asked, dice) -> None:  # type: ignore[no-untyped-def]
    """Jobs come and end in any order. As long as running jobs end, all are placed."""
    yard = Yard(slots)
    coming = [job(f"j{n}", since=n, nodes=nodes, processes_per_node=count) for n, (nodes, count) in enumerate(asked)]
    coming = [
        item for item in coming if sum(s >= (item.needs.processes_per_node or 1) for s in slots) >= item.needs.nodes
    ]
    for _ in range(4 * len(coming) + 1):
        if coming:
            yard.waiting.append(coming.pop(0))
        yard.turn()
        assert not yard.waiting or yard.running, "nothing runs, and somebody waits"
        if yard.running:
            yard.ends(dice.choice(sorted(yard.running)))

    assert not yard.waiting


@given(st.lists(st.integers(1, 3), min_size=2, max_size=4))
def test_small_jobs_that_keep_coming_do_not_starve_one_on_several_nodes(slots: list[int]) -> None:
    """The job that has run longest ends with every turn, and two new ones come.

    Only jobs from before the big one have to end, because a free slot never goes to a later job.
    """
    yard = Yard(slots)
    yard.waiting = [job(f"s{n}") for n in range(sum(slots))]
    yard.turn()
    yard.waiting.append(job("gang", since=1, nodes=len(slots)))
    for turn in range(sum(slots)):
        yard.turn()
        assert "gang" not in yard.running or turn >= len(slots)
        yard.ends(next(name for name in yard.running if name != "gang"))
        yard.waiting += [job(f"t{turn}-{n}", since=2 + turn) for n in range(2)]
    yard.turn()

    assert "gang" in yard.running


def test_what_it_waits_for_is_held_and_no_more() -> None:
    nodes = [room("a", slots=4, free=3), room("b", slots=4, free=0)]
    plan = place([job("gang", nodes=2), *(job(f"s{n}", since=1) for n in range(3))], nodes)

    assert plan.placed == {"s0": ["a"], "s1": ["a"]}
    assert plan.waits[JobId("gang")].reason is Reason.CAPACITY


def test_the_next_one_holds_where_the_first_has_nothing_to_hold() -> None:
    nodes = [room("a", slots=2, free=1), room("b", slots=1, is_open=False)]
    waiting = [job("gang", nodes=2), job("wide", since=1, processes_per_node=2), job("small", since=2)]

    assert place(waiting, nodes).placed == {}


def test_ranks_with_a_gpu_and_ranks_without_are_not_put_together() -> None:
    gpu, cpus = room("gpu", gpus=2), [room("x"), room("y")]

    assert place([job("gang", nodes=2)], [gpu, *cpus]).placed == {"gang": ["x", "y"]}
    plan = place([job("gang", nodes=2)], [gpu, cpus[0]])
    assert plan.placements == []
    assert plan.waits[JobId("gang")].reason is Reason.NO_SUCH_SHAPE
    assert place([job("gang", nodes=2, gpus_per_node=0)], [gpu, cpus[0]]).placed == {"gang": ["gpu", "x"]}


def test_a_node_that_cannot_run_a_part_gets_none() -> None:
    nodes = [room("new"), room("old", shares_jobs=False)]

    assert place([job("gang", nodes=2), job("small", since=1)], nodes).placed == {"small": ["new"]}


def test_nothing_is_held_for_who_waits_for_a_node_that_takes_no_work() -> None:
    nodes = [room("a", slots=1), room("b", slots=1, is_open=False)]

    assert place([job("gang", nodes=2), job("small", since=1)], nodes).placed == {"small": ["a"]}
