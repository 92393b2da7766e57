"""Makes torch loaders from datasets. `Epoch` is one pass over a loader, which can start at any batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, SequentialSampler

from footplate.contract.arguments import TrainingArguments
from footplate.trainer.data_stream import Stream, StreamShard, has_position
from footplate.trainer.losses.loss import DICT, items
from footplate.trainer.own_generators import OwnGenerators
from footplate.trainer.samplers import ALL_DATA, Batches, DataShard, EpochSampler, SeededBatch
from footplate.trainer.seeds import data_seed, host_fingerprint, host_rng, set_host_rng, set_rng_state, set_seed
from footplate.trainer.strategies.peers import PaddingBatch

log = logging.getLogger("footplate.trainer")

Collator = Callable[[Sequence[Any]], Any]


def has_length(dataset: object) -> bool:
    try:
        return isinstance(dataset, Sized) and len(dataset) is not None
    except (TypeError, NotImplementedError):
        return False


def require_samples(data: Any, name: str) -> None:
    """Raises TypeError for data that is not a list of samples: columns, a dict of datasets, or a generator."""
    if isinstance(data, Mapping) and 0 not in data:
        columns = ", ".join(map(str, list(data)[:8])) or "nothing"
        description = f"a {type(data).__name__} of {columns}: pass a list of samples, one of the sets"
    elif hasattr(data, "iloc"):
        description = f"a {type(data).__name__}: pass a list of samples, such as its to_dict('records')"
    elif not hasattr(data, "__getitem__") and not isinstance(data, IterableDataset):
        description = f"a {type(data).__name__}: pass a list of samples"
    else:
        return
    raise TypeError(
        f"{name} is {description}. An IterableDataset, or an object with __getitem__ and __len__, works too"
    )


def make_loader(
    dataset: Any,
    args: TrainingArguments,
    collator: Collator,
    batch_size: int,
    sampler: Sampler[Any] | None,
    shard: DataShard = ALL_DATA,
) -> DataLoader[Any]:
    """Makes a torch loader with its own generator, because torch's default would use the generator of dropout."""
    options: dict[str, Any] = {
        "collate_fn": collator,
        "num_workers": args.dataloader_num_workers,
        # Pinning starts a thread, and has no use on a CPU.
        "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available() and not args.use_cpu,
        "persistent_workers": args.dataloader_persistent_workers,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "multiprocessing_context": args.dataloader_multiprocessing_context,
        "in_order": args.dataloader_in_order,
        "generator": PrivateGenerator(),
    }
    if sampler is None and not isinstance(dataset, IterableDataset) and has_length(dataset):
        sampler = SequentialSampler(dataset)
    if isinstance(dataset, IterableDataset) or sampler is None:
        if shard.world > 1:
            dataset = StreamShard(dataset, shard, batch_size)
        return DataLoader(dataset, batch_size=batch_size, drop_last=args.dataloader_drop_last, **options)
    seed = data_seed(args)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset):
        # As Accelerate does, replace the sampler by one whose order is a function of the epoch.
        sampler = EpochSampler(dataset, seed)
    batches = Batches(sampler, batch_size, args.dataloader_drop_last, seed=seed, shard=shard)
    if options["num_workers"]:
        dataset = SeededDataset(dataset, collator)
    return DataLoader(dataset, batch_sampler=batches, **options)


class SeededDataset(Dataset[Any]):
    """Wraps a dataset for loading processes, so that its random draws depend on the number of the batch only.

    A resumed run therefore reads the same samples, although other processes may read them.
    The generators that the loader's collator keeps for itself draw by the same rule.
    """

    def __init__(self, dataset: Any, collator: Collator) -> None:
        self.dataset, self._collator = dataset, collator
        self._generators: OwnGenerators | None = None

    def __eq__(self, other: object) -> bool:
        """Returns True for the dataset itself, because scripts compare `loader.dataset` with theirs."""
        other = other.dataset if isinstance(other, SeededDataset) else other
        return other is self.dataset or bool(other == self.dataset)

    def __hash__(self) -> int:
        return hash(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: SeededBatch) -> list[Any]:
        set_seed(indices.seed)
        if self._generators is None:
            self._generators = OwnGenerators(self._collator)
        self._generators.seed(indices.seed)
        several = getattr(self.dataset, "__getitems__", None)
        if several is not None:
            return several(list(indices))  # type: ignore[no-any-return]
        return [self.dataset[index] for index in indices]


class Epoch:
    """The batches of one epoch from number `skip` on, and the generator states that a resume needs to repeat them.

    Up to two states of the global generators are stored, because the number of a batch does not determine them:

    - The state at the start of the epoch. A user's sampler may draw the order of the samples from these generators.
    - The state before the newest batch was read. It is stored only if reading draws numbers too, as in a collator that
      masks at random. Hugging Face then reads one batch ahead of the step, so that dropout draws after that batch. This
      class does the same.

    Each state includes a collator's own generators, which continue from one batch to the next. The state at the start
    of the epoch also includes those of a user's sampler, which continue from one epoch to the next.
    """

    def __init__(
        self,
        loader: Any,
        *,
        seed: int,
        epoch: int,
        skip: int = 0,
        offset: int = 0,
        rng: Mapping[str, Any] | None = None,
    ) -> None:
        places: Mapping[str, Any] = {} if rng is None else rng.get("places", {})
        self._collator = OwnGenerators(getattr(loader, "collate_fn", None))
        self._sampler = OwnGenerators(getattr(getattr(loader, "batch_sampler", None), "sampler", None))
        if rng is not None and not skip:
            set_rng_state(rng)
            self._collator.restore(places.get("collator", {}))
            self._sampler.restore(places.get("sampler", {}))
        if skip and "epoch" in places:
            self._set_rng(places["epoch"])
            self._sampler.restore(places["epoch"].get("sampler", {}))
        self._opened = {**self._rng(), "sampler": self._sampler.state()}
        self._number, self._read, self._offset = epoch, skip, offset
        self.is_over = False
        """True if no further batch of this epoch is trained on, because a callback or the data ended the epoch."""
        self.has_ended = False
        """True from the event on_epoch_end on. A checkpoint that was saved before continues with this event."""
        if is_ours(loader):
            draw_and_discard()
        self._stream = Stream(loader, places.get("stream") if skip else None) if has_position(loader) else None
        self._batches = epoch_batches(loader, seed=seed, epoch=epoch, skip=skip, offset=offset, stream=self._stream)
        self._held: list[Any] = []
        self._before_held: Any = None
        self._reads_ahead: bool | None = None
        if skip and "ahead" in places:
            self._set_rng(places["ahead"])
            self._reads_ahead = True
            self._hold_next()
        if rng is not None and skip:
            set_rng_state(rng)
            self._collator.restore(places.get("collator", {}))

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
        """Returns what a checkpoint must store now to continue this epoch: the position and the generator states.

        After the end of the epoch, the run continues at the start of the next epoch.
        """
        sampler_state = self._sampler.state()
        samplers = {"sampler": sampler_state} if sampler_state else {}
        if self.is_over and self.has_ended:
            return {"at": [self._number + 1, 0], **samplers}
        places: dict[str, Any] = {"epoch": self._opened, "at": [self._number, self._read], **samplers}
        places |= {name: True for name in ("is_over", "has_ended") if getattr(self, name)}
        if collator_state := self._collator.state():
            places["collator"] = collator_state
        if self._offset:
            places["offset"] = self._offset
        if self._stream is not None:
            # With a position, a stream of this process would begin the next epoch there.
            return places if self.is_over else {**places, "stream": self._stream.place()}
        return {**places, "ahead": self._before_held} if self._held else places

    def _first(self) -> Any:
        """Reads the first batch, and detects whether reading draws random numbers."""
        fingerprint = host_fingerprint()
        batch = next(self._batches)
        self._reads_ahead = host_fingerprint() != fingerprint
        if self._reads_ahead:
            self._hold_next()
        return batch

    def _hold_next(self) -> None:
        self._before_held = self._rng()
        self._held = list(islice(self._batches, 1))

    def _rng(self) -> dict[str, Any]:
        return {**host_rng(), "collator": self._collator.state()}

    def _set_rng(self, state: Mapping[str, Any]) -> None:
        set_host_rng(state)
        self._collator.restore(state.get("collator", {}))


def epoch_batches(
    loader: Any, *, seed: int, epoch: int, skip: int = 0, offset: int = 0, stream: Stream | None = None
) -> Iterator[Any]:
    """Returns the epoch's batches from number `skip` on. Skipped batches are not read if the loader can seek.

    `offset` moves the start of the first batch by this number of samples.
    """
    if is_ours(loader):
        # Seeds the loading processes by the epoch alone, so that a resumed epoch has the same seeds.
        loader.generator.manual_seed((seed + epoch) % 2**63)
    batches = getattr(loader, "batch_sampler", None)
    samplers = (batches, getattr(batches, "sampler", None), getattr(loader, "sampler", None))
    for component in (loader, *samplers, getattr(loader, "dataset", None)):
        set_epoch = getattr(component, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
    if stream is not None:
        return stream.open()
    if isinstance(batches, Batches):
        batches.start_at(skip, offset)
        return opened(loader)
    if skip and isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        from accelerate import skip_first_batches

        shorter: DataLoader[Any] = skip_first_batches(loader, skip)
        return iter(shorter)
    all_batches: Iterator[Any] = iter(loader)
    if skip:
        log.warning("%d batches are read and dropped, because this data cannot start at a later position", skip)
        for _ in islice(all_batches, skip):
            pass
    return all_batches


def opened(loader: Any) -> Iterator[Any]:
    """Returns the loader's batches. For our own loader in this process, torch's iterator is replaced by a plain loop.

    torch's work around each batch (profiler marks, warnings, pinning) costs a small model a tenth of its step.
    """
    reads_here = type(loader) is DataLoader and loader.num_workers == 0 and not loader.pin_memory
    if reads_here and is_ours(loader) and isinstance(loader.batch_sampler, Batches):
        return _read_here(loader.dataset, loader.batch_sampler, loader.collate_fn)
    return iter(loader)


def _read_here(dataset: Any, batches: Batches, collate: Collator) -> Iterator[Any]:
    read_several = getattr(dataset, "__getitems__", None)
    for indices in batches:
        yield collate(read_several(indices) if read_several else [dataset[index] for index in indices])


def is_ours(loader: Any) -> bool:
    """Returns True for a loader made by `make_loader`, which has its own generator."""
    return isinstance(getattr(loader, "generator", None), PrivateGenerator)


class PrivateGenerator(torch.Generator):
    """The random generator of a loader of ours. torch's default is the global generator, from which dropout draws."""


def draw_and_discard() -> None:
    """Draws one number from the global generator, as opening a plain torch loader does.

    Our loaders draw from their own generator. The same seed gives Hugging Face's curve only if dropout on a CPU sees
    the same sequence, so this number is drawn too.
    """
    torch.empty((), dtype=torch.int64).random_()


LogDropped = Callable[[Sequence[Any]], None]
"""A function that receives the names of columns that are left out of the data."""


def without_columns(dataset: Any, keep: Sequence[str], log_dropped: LogDropped) -> Any:
    """Returns the dataset without the columns that are not in `keep`. Datasets without named columns do not change."""
    names = getattr(dataset, "column_names", None)
    if not isinstance(names, list) or not hasattr(dataset, "remove_columns"):
        return dataset
    unused = [name for name in names if name not in keep]
    if not unused or len(unused) == len(names):
        return dataset  # if no column would be left, DropUnused raises an error that names them
    log_dropped(unused)
    return dataset.remove_columns(unused)


class DropUnused:
    """Wraps a collator, and removes the keys that are not in `keep` from samples that are dicts."""

    def __init__(self, collator: Collator, keep: Sequence[str], log_dropped: LogDropped) -> None:
        self.collator, self.keep, self._log_dropped = collator, frozenset(keep), log_dropped
        self._has_logged = False

    def __call__(self, features: Sequence[Any]) -> Any:
        if not isinstance(features[0], DICT) or features[0].keys() <= self.keep:
            return self.collator(features)
        dropped = [name for name in features[0] if name not in self.keep]
        if not self._has_logged:
            self._has_logged = True
            self._log_dropped(dropped)
        if len(dropped) == len(features[0]):
            raise ValueError(
                f"the model's forward takes {', '.join(sorted(self.keep))}, but the data has none of them, only: "
                f"{', '.join(map(str, dropped))}"
            )
        return self.collator([{k: v for k, v in feature.items() if k in self.keep} for feature in features])


def batch_length(batch: Any, otherwise: int = 1) -> int:
    """Returns the number of samples in a batch, or `otherwise` if the batch contains no tensor with a dimension."""
    if isinstance(batch, list) and batch and isinstance(batch[0], DICT):
        return len(batch)
    values = batch.values() if isinstance(batch, DICT) else batch if isinstance(batch, (list, tuple)) else [batch]
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return int(value.shape[0])
    return otherwise


def count_items(batches: Sequence[Any], device: torch.device, *, shifts: bool) -> torch.Tensor | None:
    """Returns the number of labels in an accumulation window without ignored ones, or None if it cannot be counted."""
    counts = []
    for batch in batches:
        labels = batch.get("labels") if isinstance(batch, DICT) else None
        if not isinstance(labels, torch.Tensor):
            return None
        if "shift_labels" in batch:
            labels = batch["shift_labels"]
        elif shifts:
            labels = labels[..., 1:]
        count = items(labels)
        counts.append(count.zero_() if isinstance(batch, PaddingBatch) else count)
    return torch.stack(counts).sum().to(device, non_blocking=True) if counts else None
