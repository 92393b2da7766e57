"""Tests rounds of batches in which some processes have no batch. Threads take the place of processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from footplate.trainer.strategies.ddp import lockstep
from footplate.trainer.strategies.peers import OneProcess, PaddingBatch


class ThreadRank(OneProcess):
    """A rank that runs as a thread and waits for the other ranks."""

    def __init__(self, rank: int, values: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world, self._values, self._barrier = rank, len(values), values, barrier

    def all_gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait(300)
        result = list(self._values)
        self._barrier.wait(300)
        return result


def rounds(*counts: int, batch: Callable[[int], Any] = lambda rank: {"x": torch.full((2,), rank)}) -> list[list[Any]]:
    """Returns the batches of each process, given the number of batches that it has."""
    report: list[Any] = [None] * len(counts)
    barrier = threading.Barrier(len(counts))

    def of(rank: int) -> list[Any]:
        batches: Iterator[Any] = iter([batch(rank)] * counts[rank])
        return list(lockstep(batches, ThreadRank(rank, report, barrier)))

    with ThreadPoolExecutor(len(counts)) as threads:
        return list(threads.map(of, range(len(counts))))


@pytest.mark.parametrize("counts", [(2, 2), (3, 2), (1, 0), (0, 2, 0)])
def test_every_process_gets_as_many_batches_as_the_longest_and_marks_padding(counts: tuple[int, ...]) -> None:
    for result, own in zip(rounds(*counts), counts, strict=True):
        assert len(result) == max(counts)
        assert [isinstance(item, PaddingBatch) for item in result] == [at >= own for at in range(max(counts))]


def test_a_process_without_data_uses_a_batch_of_another_process_as_padding() -> None:
    empty, full = rounds(0, 1)

    assert torch.equal(empty[0]["x"], full[0]["x"])


def test_processes_without_any_data_get_no_batches() -> None:
    assert rounds(0, 0) == [[], []]
