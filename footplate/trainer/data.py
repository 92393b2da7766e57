"""Datasets to loaders, and loaders to epochs that can start anywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from footplate.contract.arguments import TrainingArguments
from footplate.trainer.losses import DICT, items
from footplate.trainer.samplers import ALL, Batches, EpochSampler, Numbered, Share
from footplate.trainer.seeds import host_fingerprint, host_rng, set_host_rng, set_seed
from footplate.trainer.strategies.peers import Hollow
from footplate.trainer.stream import ShareOfStream, Stream, tells_its_place

log = logging.getLogger("footplate.trainer")

Collator = Callable[[Sequence[Any]], Any]


def has_length(dataset: object) -> bool:
    try:
        return isinstance(dataset, Sized) and len(dataset) is not None
    except (TypeError, NotImplementedError):
        return False


def require_samples(data: Any, name: str) -> None:
    """Columns, a dict of several sets and a generator are what people hand in instead."""
    if isinstance(data, Mapping) and 0 not in data:
        there = ", ".join(map(str, list(data)[:8])) or "nothing"
        what = f"a {type(data).__name__} of {there}: hand in a list of samples, one of the sets"
    elif hasattr(data, "iloc"):
        what = f"a {type(data).__name__}: hand in a list of samples, as its to_dict('records') is"
    elif not hasattr(data, "__getitem__") and not isinstance(data, IterableDataset):
        what = f"a {type(data).__name__}: hand in a list of samples"
    else:
        return
    raise TypeError(f"{name} is {what}, or an object with __getitem__ and __len__, or an IterableDataset")


def make_loader(
    dataset: Any,
    args: TrainingArguments,
    collator: Collator,
    batch_size: int,
    sampler: Sampler[Any] | None,
    share: Share = ALL,
) -> DataLoader[Any]:
    """A torch loader with a private generator: torch's own would draw from the generator that dropout uses."""
    options: dict[str, Any] = {
        "collate_fn": collator,
        "num_workers": args.dataloader_num_workers,
        # Pinning runs a thread of its own, and on a CPU it pins for nobody.
        "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available() and not args.use_cpu,
        "persistent_workers": args.dataloader_persistent_workers,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "multiprocessing_context": args.dataloader_multiprocessing_context,
        "in_order": args.dataloader_in_order,
        "generator": PrivateGenerator(),
    }
    if isinstance(dataset, IterableDataset) or sampler is None:
        if share.world > 1:
            dataset = ShareOfStream(dataset, share, batch_size)
        return DataLoader(dataset, batch_size=batch_size, drop_last=args.dataloader_drop_last, **options)
    seed = args.seed if args.data_seed is None else args.data_seed
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset):
        # Accelerate replaces it in the same way: an order that is a function of the epoch.
        sampler = EpochSampler(dataset, seed)
    batches = Batches(sampler, batch_size, args.dataloader_drop_last, seed=seed, share=share)
    return DataLoader(InWorkers(dataset) if options["num_workers"] else dataset, batch_sampler=batches, **options)


class InWorkers(Dataset[Any]):
    """A dataset in a loading process, where what a sample or a collator draws at random follows from the batch's
    number: which process reads it, and what it has read before, makes no difference. So a resume reads the same."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Numbered) -> list[Any]:
        set_seed(indices.seed)
        several = getattr(self.dataset, "__getitems__", None)
        if several is not None:
            return several(list(indices))  # type: ignore[no-any-return]
        return [self.dataset[index] for index in indices]


class Epoch:
    """The batches of one epoch, from number `skip` on, and the places that a resume needs to come back to them.

    Two of them cannot be found from a number. Where the order was drawn from the global generators (a sampler of the
    user's own), it is drawn again from where they stood as the epoch was opened. And where reading draws from them (a
    collator that masks at random), the reference reads one batch ahead of the step, so that dropout comes after it:
    then so do we, and remember where the generators stood before that batch was read.
    """

    def __init__(
        self,
        loader: Any,
        *,
        seed: int,
        epoch: int,
        skip: int = 0,
        places: Mapping[str, Any] | None = None,
        restore: Callable[[], None] | None = None,
    ) -> None:
        places = places or {}
        if restore is not None and not skip:
            restore()
        if skip and "epoch" in places:
            set_host_rng(places["epoch"])
        self._opened, self._number, self._read = host_rng(), epoch, skip
        if is_ours(loader):
            draw_and_discard()
        self._stream = Stream(loader, places.get("stream") if skip else None) if tells_its_place(loader) else None
        self._batches = epoch_batches(loader, seed=seed, epoch=epoch, skip=skip, stream=self._stream)
        self._held: list[Any] = []
        self._before_held: Any = None
        self._reads_ahead: bool | None = None
        if skip and "ahead" in places:
            set_host_rng(places["ahead"])
            self._reads_ahead = True
            self._hold_next()
        if restore is not None and skip:
            restore()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._next()
        self._read += 1
        return batch

    def _next(self) -> Any:
        if self._stream is not None:
            return self._stream.take(next(self._batches))
        if self._reads_ahead is None:
            return self._first()
        if not self._reads_ahead:
            return next(self._batches)
        if not self._held:
            self._hold_next()
        if not self._held:
            raise StopIteration
        batch = self._held.pop()
        self._hold_next()
        return batch

    def places(self) -> dict[str, Any]:
        """For a checkpoint that is written now."""
        places = {"epoch": self._opened, "at": [self._number, self._read]}
        if self._stream is not None:
            return {**places, "stream": self._stream.place()}
        return {**places, "ahead": self._before_held} if self._held else places

    def _first(self) -> Any:
        """Shows whether reading draws."""
        before = host_fingerprint()
        batch = next(self._batches)
        self._reads_ahead = host_fingerprint() != before
        if self._reads_ahead:
            self._hold_next()
        return batch

    def _hold_next(self) -> None:
        self._before_held = host_rng()
        self._held = list(islice(self._batches, 1))


def epoch_batches(loader: Any, *, seed: int, epoch: int, skip: int = 0, stream: Stream | None = None) -> Iterator[Any]:
    """The epoch's batches from number `skip` on. What is left out is not read, where the loader can tell its place."""
    if is_ours(loader):
        # Seeds the loading processes; a function of the epoch alone, so that a resumed epoch has the same ones.
        loader.generator.manual_seed((seed + epoch) % 2**63)
    batches = getattr(loader, "batch_sampler", None)
    samplers = (batches, getattr(batches, "sampler", None), getattr(loader, "sampler", None))
    for part in (loader, *samplers, getattr(loader, "dataset", None)):
        set_epoch = getattr(part, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
    if stream is not None:
        return stream.open()
    if isinstance(batches, Batches):
        batches.start_at(skip)
        return opened(loader)
    if skip and isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        from accelerate import skip_first_batches

        shorter: DataLoader[Any] = skip_first_batches(loader, skip)
        return iter(shorter)
    rest: Iterator[Any] = iter(loader)
    if skip:
        log.warning("this data has no place to start from: reading and leaving out %d batches", skip)
        for _ in islice(rest, skip):
            pass
    return rest


def opened(loader: Any) -> Iterator[Any]:
    """Its batches, as `iter(loader)` has them. What torch does around each of them (marks for a profiler, a look at
    warnings, at pinning) costs a small model a tenth of its step: one of ours that reads here needs none of it."""
    reads_here = type(loader) is DataLoader and loader.num_workers == 0 and not loader.pin_memory
    if reads_here and is_ours(loader) and isinstance(loader.batch_sampler, Batches):
        return _read_here(loader.dataset, loader.batch_sampler, loader.collate_fn)
    return iter(loader)


def _read_here(dataset: Any, batches: Batches, collate: Collator) -> Iterator[Any]:
    read_several = getattr(dataset, "__getitems__", None)
    for indices in batches:
        yield collate(read_several(indices) if read_several else [dataset[index] for index in indices])


def is_ours(loader: Any) -> bool:
    """Made by `make_loader`, and so with a generator of its own for what torch draws when it is opened."""
    return isinstance(getattr(loader, "generator", None), PrivateGenerator)


class PrivateGenerator(torch.Generator):
    """Keeps opening a loader from drawing from the generator that dropout uses."""


def draw_and_discard() -> None:
    """Iterating a plain torch loader draws one number from the global generator, and dropout on CPU follows it.

    Ours draws from its own. So that the same seed gives the same curve as the reference's, we draw that number too.
    """
    torch.empty((), dtype=torch.int64).random_()


def without_columns(dataset: Any, keep: Sequence[str]) -> Any:
    """A dataset of named columns is spared reading those that nobody takes."""
    names = getattr(dataset, "column_names", None)
    if not isinstance(names, list) or not hasattr(dataset, "remove_columns"):
        return dataset
    unused = [name for name in names if name not in keep]
    if not unused or len(unused) == len(names):
        return dataset  # all of them: the collator below says what is wrong
    _say_what_is_left_out(unused)
    return dataset.remove_columns(unused)


class DropUnused:
    """A collator that leaves out of dict samples what the model does not take, and says once what that was."""

    def __init__(self, collator: Collator, keep: Sequence[str]) -> None:
        self.collator, self.keep, self._told = collator, frozenset(keep), False

    def __call__(self, features: Sequence[Any]) -> Any:
        if not isinstance(features[0], DICT) or features[0].keys() <= self.keep:
            return self.collator(features)
        dropped = [name for name in features[0] if name not in self.keep]
        if not self._told:
            self._told = True
            _say_what_is_left_out(dropped)
        if len(dropped) == len(features[0]):
            raise ValueError(
                f"the model's forward takes {', '.join(sorted(self.keep))}, and the data has none of them, only: "
                f"{', '.join(map(str, dropped))}"
            )
        return self.collator([{k: v for k, v in feature.items() if k in self.keep} for feature in features])


def _say_what_is_left_out(names: Sequence[Any]) -> None:
    log.warning(
        "left out of the data, because forward does not take them: %s. remove_unused_columns=False keeps them",
        ", ".join(map(str, names)),
    )


def batch_length(batch: Any) -> int:
    """How many samples a batch holds."""
    values = batch.values() if isinstance(batch, DICT) else batch if isinstance(batch, (list, tuple)) else [batch]
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return int(value.shape[0])
    return 1


def count_items(batches: Sequence[Any], device: torch.device, *, shifts: bool) -> torch.Tensor | None:
    """How many labels count in a window of micro-batches; None where they have none that can be counted."""
    counts = []
    for batch in batches:
        labels = batch.get("labels") if isinstance(batch, DICT) else None
        if not isinstance(labels, torch.Tensor):
            return None
        if "shift_labels" in batch:
            labels = batch["shift_labels"]
        elif shifts:
            labels = labels[..., 1:]
        found = items(labels)
        counts.append(found.zero_() if isinstance(batch, Hollow) else found)
    return torch.stack(counts).sum().to(device, non_blocking=True) if counts else None
