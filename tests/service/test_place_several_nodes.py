"""Tests placement of jobs on several nodes. No such job starves, and none delays other jobs without need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from footplate.contract.ids import JobId
from footplate.contract.lifecycle import Reason
from tests.support.placing import Waiting, capacity, job, place


class Cluster:
    """Simulates nodes over time. Placed jobs hold their slots until they end."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.capacities = {f"n{number}": capacity(f"n{number}", count) for number, count in enumerate(slots)}
        self.running: dict[str, list[tuple[str, int]]] = {}
        self.waiting: list[Waiting] = []

    def turn(self) -> None:
        plan = place(self.waiting, list(self.capacities.values()))
        for placement in plan.placements:
            self.running[placement.job_id] = [(share.node, share.slots) for share in placement.shares]
            for node, slots in self.running[placement.job_id]:
                self._free(node, -slots)
        self.waiting = [item for item in self.waiting if item.job_id in plan.waits]

    def ends(self, job_id: str) -> None:
        for node, slots in self.running.pop(job_id):
            self._free(node, slots)

    def _free(self, node: str, slots: int) -> None:
        self.capacities[node] = replace(self.capacities[node], free_slots=self.capacities[node].free_slots + slots)
        assert 0 <= self.capacities[node].free_slots <= self.capacities[node].slots


several_nodes = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=8)


@given(st.lists(st.integers(1, 4), min_size=3, max_size=5), several_nodes, st.randoms(use_true_random=False))
def test_jobs_on_several_nodes_do_not_deadlock_each_other(slots, requests, dice) -> None:  # type: ignore[no-untyped-def]
    """Jobs arrive and end in any order. All of them are placed as long as running jobs end."""
    cluster = Cluster(slots)
    later_jobs = [
        job(f"j{n}", since=n, nodes=nodes, processes_per_node=count) for n, (nodes, count) in enumerate(requests)
    ]
    later_jobs = [
        item for item in later_jobs if sum(s >= (item.needs.processes_per_node or 1) for s in slots) >= item.needs.nodes
    ]
    for _ in range(4 * len(later_jobs) + 1):
        if later_jobs:
            cluster.waiting.append(later_jobs.pop(0))
        cluster.turn()
        assert not cluster.waiting or cluster.running, "a job waits although no job runs"
        if cluster.running:
            cluster.ends(dice.choice(sorted(cluster.running)))

    assert not cluster.waiting


@given(st.lists(st.integers(1, 3), min_size=2, max_size=4))
def test_a_stream_of_small_jobs_does_not_starve_a_job_on_several_nodes(slots: list[int]) -> None:
    """The job that has run longest ends in every turn, and two new jobs arrive.

    The big job waits only for older jobs to end, because a later job never gets a free slot.
    """
    cluster = Cluster(slots)
    cluster.waiting = [job(f"s{n}") for n in range(sum(slots))]
    cluster.turn()
    cluster.waiting.append(job("several", since=1, nodes=len(slots)))
    for turn in range(sum(slots)):
        cluster.turn()
        assert "several" not in cluster.running or turn >= len(slots)
        cluster.ends(next(name for name in cluster.running if name != "several"))
        cluster.waiting += [job(f"t{turn}-{n}", since=2 + turn) for n in range(2)]
    cluster.turn()

    assert "several" in cluster.running


def test_a_waiting_job_reserves_only_the_slots_that_it_needs() -> None:
    nodes = [capacity("a", slots=4, free=3), capacity("b", slots=4, free=0)]
    plan = place([job("several", nodes=2), *(job(f"s{n}", since=1) for n in range(3))], nodes)

    assert plan.placed == {"s0": ["a"], "s1": ["a"]}
    assert plan.waits[JobId("several")].reason is Reason.CAPACITY


def test_the_next_job_reserves_if_the_first_cannot_reserve_anything() -> None:
    nodes = [capacity("a", slots=2, free=1), capacity("b", slots=1, is_open=False)]
    waiting = [job("several", nodes=2), job("wide", since=1, processes_per_node=2), job("small", since=2)]

    assert place(waiting, nodes).placed == {}


def test_ranks_with_and_without_a_gpu_are_not_in_one_job() -> None:
    gpu, cpus = capacity("gpu", gpus=2), [capacity("x"), capacity("y")]

    assert place([job("several", nodes=2)], [gpu, *cpus]).placed == {"several": ["x", "y"]}
    plan = place([job("several", nodes=2)], [gpu, cpus[0]])
    assert plan.placements == []
    assert plan.waits[JobId("several")].reason is Reason.NO_SUCH_SHAPE
    assert place([job("several", nodes=2, gpus_per_node=0)], [gpu, cpus[0]]).placed == {"several": ["gpu", "x"]}


def test_nothing_is_reserved_for_a_job_whose_node_takes_no_work() -> None:
    nodes = [capacity("a", slots=1), capacity("b", slots=1, is_open=False)]

    assert place([job("several", nodes=2), job("small", since=1)], nodes).placed == {"small": ["a"]}
