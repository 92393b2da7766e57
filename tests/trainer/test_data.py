"""Tests epochs that start at any batch, and loaders that leave the random generators of training alone."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Sampler, SequentialSampler

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.collators import default_data_collator
from footplate.trainer.data import PrivateGenerator, epoch_batches, make_loader, opened
from footplate.trainer.samplers import Batches, DataShard, EpochSampler


@given(
    samples=st.integers(1, 60),
    size=st.integers(1, 9),
    skip=st.integers(0, 70),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_an_epoch_started_at_any_batch_yields_the_remaining_batches(
    samples: int, size: int, skip: int, drop_last: bool, shuffle: bool
) -> None:
    data = range(samples)
    sampler: Sampler[int] = EpochSampler(data, seed=5) if shuffle else SequentialSampler(data)
    batches = Batches(sampler, size, drop_last)
    batches.set_epoch(3)
    whole = list(batches)

    batches.start_at(skip)

    assert list(batches) == whole[skip:]
    assert len(whole) == len(batches)
    assert list(batches) == whole


@given(
    samples=st.integers(1, 60),
    size=st.integers(1, 9),
    first=st.integers(0, 60),
    world=st.integers(1, 3),
    drop_last=st.booleans(),
)
def test_an_epoch_started_at_any_sample_yields_the_remaining_samples(
    samples: int, size: int, first: int, world: int, drop_last: bool
) -> None:
    shares = [
        Batches(EpochSampler(range(samples), seed=5), size, drop_last, shard=DataShard(rank, world))
        for rank in range(world)
    ]
    skip = len(shares[0]) - shares[0].rounds_from(first)
    rest: list[list[list[int]]] = []
    for batches in shares:
        batches.start_at(skip, first - skip * size * world)
        rest.append(list(batches))

    order = EpochSampler(range(samples), seed=5).order().tolist()
    read_samples = [sample for turn in zip_longest(*rest, fillvalue=[]) for batch in turn for sample in batch]
    remaining_samples = order[first:]
    whole = len(remaining_samples) // (size * world) * size * world
    assert read_samples == (remaining_samples[:whole] if drop_last else remaining_samples)


def test_every_sample_occurs_once_per_epoch_and_epochs_have_different_orders() -> None:
    sampler = EpochSampler(range(20), seed=1)
    first = list(sampler)
    sampler.set_epoch(1)

    assert sorted(first) == list(range(20))
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_data_does_not_change_the_global_random_generator(workers: int) -> None:
    data = toy.regression(n=20)
    args = TrainingArguments("out", dataloader_num_workers=workers)
    loader = make_loader(data, args, default_data_collator, 4, EpochSampler(data, seed=1))
    before = torch.get_rng_state()

    assert len(list(epoch_batches(loader, seed=1, epoch=0))) == 5

    assert torch.get_rng_state().equal(before)


def test_the_dataset_of_a_loader_with_workers_equals_that_of_the_script() -> None:
    data = toy.regression(n=20)
    args = TrainingArguments("out", dataloader_num_workers=1)
    dataset: Any = make_loader(data, args, default_data_collator, 4, EpochSampler(data, seed=1)).dataset

    assert dataset == data
    assert data == dataset
    assert dataset != toy.regression(n=20)
    assert dataset.columns is data.columns


class Several(list[int]):
    """A dataset that reads all rows of a batch in one call."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [100 + self[index] for index in indices]


@pytest.mark.parametrize("data", [list(range(10)), Several(range(10))], ids=["one by one", "several at once"])
def test_batches_equal_those_of_torchs_own_loader_iterator(data: list[int]) -> None:
    loader: Any = make_loader(data, TrainingArguments("out"), torch.tensor, 4, EpochSampler(data, seed=1))

    assert [batch.tolist() for batch in opened(loader)] == [batch.tolist() for batch in iter(loader)]


def test_data_without_a_sampler_is_shared_by_processes_in_its_own_order() -> None:
    class Endless(Dataset[int]):  # its iteration does not end, because no index raises IndexError
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            return index % 10

    loaders: list[Any] = [
        make_loader(Endless(), TrainingArguments("out"), torch.tensor, 4, None, DataShard(rank, 2)) for rank in (0, 1)
    ]

    assert [len(loader) for loader in loaders] == [2, 2]
    assert [[batch.tolist() for batch in loader] for loader in loaders] == [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7]]]


def test_a_loader_that_overrides_iter_is_read_by_its_own_iterator() -> None:
    class Twice(DataLoader[Any]):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield from (batch, batch)

    batches = Batches(SequentialSampler(range(4)), 2, drop_last=False)

    assert [
        batch.tolist() for batch in opened(Twice(range(4), batch_sampler=batches, generator=PrivateGenerator()))
    ] == [
        [0, 1],
        [0, 1],
        [2, 3],
        [2, 3],
    ]


def test_a_loader_of_the_users_own_can_start_within_an_epoch() -> None:
    loader: Any = DataLoader(list(range(10)), batch_size=2)

    assert [batch.tolist() for batch in epoch_batches(loader, seed=1, epoch=0, skip=3)] == [[6, 7], [8, 9]]
