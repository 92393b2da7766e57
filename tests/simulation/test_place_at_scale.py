"""Tests placement of 100,000 jobs in a day on 1,000 nodes that fail. Few slots stay free while a job waits.

Slots that stay free are reserved on nodes that are emptied for a big job, so that no job waits for ever.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import replace
from random import Random

import pytest

from footplate.contract.ids import JobId, NodeId
from footplate.contract.messages import Gpu
from service.jobs.needs import Needs
from service.jobs.placement import NodeCapacity, Placement
from tests.support.placing import Waiting, place

DAY_SECONDS = 24 * 3600.0
PLACEMENT_SECONDS = 30.0
"""Seconds between two turns of placement, which are longer than control's, so that a day fits into minutes."""
SHAPES = [Needs(), Needs(gpus_per_node=0), Needs(gpus_per_node=1), Needs(gpus_per_node=2), Needs(gpus_per_node=4),
          Needs(gpus_per_node=8), Needs(nodes=4, gpus_per_node=8)]  # fmt: skip
WEIGHTS = [30, 15, 30, 12, 8, 4, 1]


def a_node(number: int) -> NodeCapacity:
    """Returns an empty node. Every second node has GPUs."""
    gpus = tuple(Gpu(uuid=f"{number}-{n}", name="H100", capability=(9, 0)) for n in range(8 * (number % 2)))
    return NodeCapacity(NodeId(f"node{number:04}"), "boot", "default", 8, 8, gpus, gpus)


class Day:
    """A simulated day, in which jobs arrive, run on the nodes, and are lost if their node fails."""

    def __init__(self, seed: int, nodes: int, jobs: int, seconds: float) -> None:
        self.dice = Random(seed)
        self.rooms = {room.node: room for room in map(a_node, range(nodes))}
        self.seconds, self.failures = seconds, nodes / 20
        # The jobs need a quarter more GPU time than the nodes have in a day, so that a queue grows and shrinks later.
        self.lasts = seconds * nodes * 8 / jobs / 2.4
        self.coming = sorted((self.dice.random() * seconds, number) for number in range(jobs))
        self.waiting: dict[JobId, Waiting] = {}
        self.running: dict[JobId, tuple[Placement, Waiting, float]] = {}
        self.ending: list[tuple[float, JobId, int]] = []
        self.starts: dict[JobId, int] = {}
        self.ended_jobs: set[JobId] = set()
        self.idle = self.slots = 0.0

    def run(self) -> None:
        now, numbers = 0.0, iter(self.coming)
        upcoming = next(numbers, None)
        while upcoming or self.waiting or self.running:
            while upcoming and upcoming[0] <= now:
                job = JobId(f"job{upcoming[1]:06}")
                needs = self.dice.choices(SHAPES, WEIGHTS)[0]
                self.waiting[job] = Waiting(job, needs, self.dice.randrange(3), round(now * 1000))
                upcoming = next(numbers, None)
            self.end(now)
            self.fail(now)
            self.look(now)
            now += PLACEMENT_SECONDS
            assert now < 4 * self.seconds, f"{len(self.waiting)} jobs wait, {len(self.running)} run"

    def look(self, now: float) -> None:
        plan = place(self.waiting.values(), list(self.rooms.values()))
        for placement in plan.placements:
            job = self.waiting.pop(placement.job_id)
            assert job.job_id not in self.running
            self.starts[job.job_id] = start = self.starts.get(job.job_id, 0) + 1
            self.take(placement)
            self.running[job.job_id] = placement, job, now
            lasts = self.dice.expovariate(1 / self.lasts)
            heapq.heappush(self.ending, (now + lasts, job.job_id, start))
        assert plan.waits.keys() == self.waiting.keys()
        self.count()

    def take(self, placement: Placement) -> None:
        for share in placement.shares:
            room = self.rooms[share.node]
            free_gpus = tuple(gpu for gpu in room.free_gpus if gpu.uuid not in share.gpus)
            assert room.free_slots >= share.slots
            assert len(free_gpus) == len(room.free_gpus) - len(share.gpus), "a GPU was given away twice"
            self.rooms[share.node] = replace(room, free_slots=room.free_slots - share.slots, free_gpus=free_gpus)

    def give_back(self, job: JobId) -> Waiting:
        placement, waited, _ = self.running.pop(job)
        for share in placement.shares:
            room = self.rooms[share.node]
            back = tuple(gpu for gpu in room.gpus if gpu in room.free_gpus or gpu.uuid in share.gpus)
            self.rooms[share.node] = replace(room, free_slots=room.free_slots + share.slots, free_gpus=back)
        return waited

    def end(self, now: float) -> None:
        while self.ending and self.ending[0][0] <= now:
            _, job, start = heapq.heappop(self.ending)
            if job in self.running and self.starts[job] == start:
                self.give_back(job)
                assert job not in self.ended_jobs
                self.ended_jobs.add(job)

    def fail(self, now: float) -> None:
        """Fails a few nodes per day, which lose all of their jobs. A failed node is back within minutes."""
        for node in [node for node, room in self.rooms.items() if not room.is_open and self.dice.random() < 0.2]:
            self.rooms[node] = replace(self.rooms[node], is_open=True)
        if self.dice.random() < self.failures * PLACEMENT_SECONDS / self.seconds:
            node = self.dice.choice(list(self.rooms))
            jobs = [job for job, (item, *_) in self.running.items() if any(part.node == node for part in item.shares)]
            for job in jobs:
                self.waiting[job] = self.give_back(job)
            self.rooms[node] = replace(self.rooms[node], is_open=False)

    def count(self) -> None:
        """Counts the free slots, if a job waits that could run in one of them."""
        requests = {job.needs.gpus_per_node for job in self.waiting.values() if job.needs.nodes == 1}
        for room in self.rooms.values():
            self.slots += room.slots
            offers = {None, 0, 1} if room.free_gpus else {0} if room.gpus else {None, 0}
            if room.is_open and requests & offers:
                self.idle += room.free_slots


def account(day: Day, jobs: int) -> None:
    day.run()
    assert len(day.ended_jobs) == jobs
    assert all(room.free_slots == room.slots and room.free_gpus == room.gpus for room in day.rooms.values())
    wasted = day.idle / day.slots
    restarts = sum(day.starts.values()) - jobs
    print(f"{jobs} jobs, {restarts} lost and placed again, {wasted:.2%} of slot time wasted")
    assert wasted <= 0.02, f"{wasted:.2%}"


def test_in_hours_of_many_jobs_few_slots_stay_free_while_a_job_could_use_them() -> None:
    account(Day(seed=1, nodes=300, jobs=3000, seconds=DAY_SECONDS / 12), 3000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_in_a_day_of_100_000_jobs_few_slots_stay_free_while_a_job_could_use_them() -> None:
    start = time.process_time()
    account(Day(seed=1, nodes=1000, jobs=100_000, seconds=DAY_SECONDS), 100_000)
    print(f"{time.process_time() - start:.0f} s of CPU")
