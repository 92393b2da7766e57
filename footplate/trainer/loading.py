"""Makes the Trainer's data loaders: the data, its order and its batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import finalize

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler

from footplate.trainer.data import Collator, DropUnused, has_length, make_loader, require_samples, without_columns
from footplate.trainer.data_stream import has_position
from footplate.trainer.samplers import (
    BatchRebalanceSampler,
    EpochSampler,
    GlobalShuffle,
    LengthGroupedSampler,
    lengths_of,
)
from footplate.trainer.seeds import data_seed

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


def get_train_dataloader(trainer: Trainer) -> Any:
    if trainer.train_dataset is None:
        raise ValueError("training needs a train_dataset")
    return trainer._get_dataloader(
        dataset=trainer.train_dataset,
        description="Training",
        batch_size=trainer._train_batch_size,
        sampler_fn=trainer._get_train_sampler,
        is_training=True,
    )


def get_eval_dataloader(trainer: Trainer, eval_dataset: Any = None) -> Any:
    """Returns the loader of one set. If loading processes persist, each of the Trainer's own sets has one loader."""
    dataset = trainer.eval_dataset if eval_dataset is None else eval_dataset
    if isinstance(dataset, str):
        sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, Mapping) else {}
        if dataset not in sets:
            its_sets = f"its sets are {', '.join(map(str, sets))}" if sets else "it is one set without a name"
            raise KeyError(f"eval_dataset has no set {dataset!r}: {its_sets}")
        dataset = sets[dataset]
    if dataset is None:
        raise ValueError("evaluation needs an eval_dataset")
    name = eval_dataset if isinstance(eval_dataset, str) else "eval"
    is_ours = eval_dataset is None or isinstance(eval_dataset, str) or eval_dataset is trainer.eval_dataset
    key = name if is_ours else None
    internals = trainer._footplate
    if key in trainer._eval_dataloaders and internals.eval_sets.get(key) is dataset:
        return trainer._eval_dataloaders[key]
    if key is not None and trainer.args.dataloader_persistent_workers:
        internals.eval_sets[key] = dataset
    return trainer._get_dataloader(
        dataset=dataset,
        description="Evaluation",
        batch_size=trainer.args.eval_batch_size,
        sampler_fn=trainer._get_eval_sampler,
        dataloader_key=key,
    )


def get_test_dataloader(trainer: Trainer, test_dataset: Any) -> Any:
    """Returns a loader in the order of the data, because scripts join predictions with the rows of the data."""
    is_own = "_get_eval_sampler" in trainer._footplate.overrides
    return trainer._get_dataloader(
        dataset=test_dataset,
        description="test",
        batch_size=trainer.args.eval_batch_size,
        sampler_fn=trainer._get_eval_sampler if is_own else None,
    )


def get_dataloader(
    trainer: Trainer,
    dataset: Any,
    description: str,
    batch_size: int,
    sampler_fn: Callable[[Any], Sampler[Any] | None] | None = None,
    is_training: bool = False,
    dataloader_key: str | None = None,
) -> Any:
    """Makes each loader of the Trainer. If loading processes persist, keeps the loader under `dataloader_key`."""
    require_samples(dataset, "the data")
    strategy = trainer._footplate.strategy
    sampler = sampler_fn(dataset) if sampler_fn is not None and not isinstance(dataset, IterableDataset) else None
    dataset, collator = (
        trainer._remove_unused_columns(dataset),
        trainer._get_collator_with_removed_columns(trainer.data_collator),
    )
    shard = strategy.data_shard(evens=is_training and strategy.accelerator_config.even_batches)
    size = strategy.batch_size(batch_size)
    loader = strategy.prepare_loader(make_loader(dataset, trainer.args, collator, size, sampler, shard))
    if not trainer.args.dataloader_persistent_workers:
        return loader
    _end_workers_with_their_iterator(getattr(loader, "base_dataloader", loader))
    if dataloader_key is not None:
        trainer._eval_dataloaders[dataloader_key] = loader
    if is_training and has_position(loader):
        log.warning(
            "dataloader_persistent_workers has no effect on training, because the training data is a stream that "
            "resumes at its position: each epoch starts new loading processes"
        )
    return loader


def _end_workers_with_their_iterator(loader: DataLoader[Any]) -> None:
    """Makes persistent loading processes end at once when Python's garbage collection finds their iterator.

    The collection may end the threads of the iterator's queues before the iterator itself. Then the request to end
    reaches no process, and torch waits five seconds for each. Queues that are held until then keep their threads.
    """
    make_iterator = loader._get_iterator

    def make_held_iterator() -> Any:
        iterator: Any = make_iterator()
        finalize(iterator, _release, tuple(iterator._index_queues)).atexit = False
        return iterator

    loader._get_iterator = make_held_iterator  # type: ignore[method-assign]


def _release(queues: Sequence[Queue[Any]]) -> None:
    """Does nothing: the queues are released because this call is over."""


def set_signature_columns(trainer: Trainer) -> None:
    """Sets `_signature_columns`, the columns of a sample that the collator receives. An override chooses others.

    If `forward` names no argument, the attribute stays None, and the collator receives every column.
    """
    signature = trainer._footplate.model_signature
    takes_anything = signature.is_open and not signature.arguments
    if trainer._signature_columns is None and not takes_anything:
        labels = dict.fromkeys(["label", "label_ids", *trainer.label_names, "labels"])
        trainer._signature_columns = [*(signature.arguments or ("x",)), *labels]


def remove_unused_columns(trainer: Trainer, dataset: Any, description: str | None = None) -> Any:
    """Returns the dataset without the columns that the model's forward does not take, so that these are not read."""
    columns = _columns(trainer)
    return dataset if columns is None else without_columns(dataset, columns, _logger(trainer))


def collator_of_columns(trainer: Trainer, data_collator: Collator, description: str | None = None) -> Collator:
    """Wraps the collator, so that the columns that the model's forward does not take are removed from each sample."""
    columns = _columns(trainer)
    return data_collator if columns is None else DropUnused(data_collator, columns, _logger(trainer))


def _columns(trainer: Trainer) -> list[str] | None:
    if not trainer.args.remove_unused_columns:
        return None
    trainer._set_signature_columns_if_needed()
    return trainer._signature_columns


def _logger(trainer: Trainer) -> Callable[[Sequence[Any]], None]:
    """Returns a function that logs dropped columns. Unlike a Trainer, it can be pickled for a spawned process."""
    is_overridden = "_set_signature_columns_if_needed" in trainer._footplate.overrides
    class_name = type(trainer).__name__
    reason = f"{class_name} does not name them in _signature_columns" if is_overridden else "forward does not take them"
    return partial(_log_dropped, trainer._footplate.columns_left_out, reason)


def _log_dropped(logged: set[Any], reason: str, names: Sequence[Any]) -> None:
    """Logs the columns that are left out, once for each Trainer."""
    new_names = [str(name) for name in names if name not in logged]
    logged.update(names)
    if new_names:
        listing = ", ".join(new_names)
        log.warning("dropped from the data, because %s: %s. remove_unused_columns=False keeps them", reason, listing)


def train_sampler(trainer: Trainer, train_dataset: Any = None) -> Sampler[Any] | None:
    dataset = trainer.train_dataset if train_dataset is None else train_dataset
    if not has_length(dataset):
        return None
    args = trainer.args
    if args.train_sampling_strategy == "sequential":
        return SequentialSampler(dataset)
    if args.train_sampling_strategy == "random":
        if not trainer._footplate.strategy.accelerator_config.use_seedable_sampler:
            return GlobalShuffle(dataset)
        return EpochSampler(dataset, data_seed(trainer.args))
    lengths, step = _lengths(trainer, dataset), trainer.get_total_train_batch_size(args)
    if args.train_sampling_strategy == "group_by_length":
        return LengthGroupedSampler(step, lengths=lengths)
    groups = args.gradient_accumulation_steps * trainer._footplate.strategy.readers.world
    return BatchRebalanceSampler(lengths, step, groups, drop_last=args.dataloader_drop_last)


def eval_sampler(trainer: Trainer, eval_dataset: Any) -> Sampler[Any] | None:
    if not has_length(eval_dataset):
        return None
    if trainer.args.train_sampling_strategy == "group_by_length":
        generator = torch.Generator().manual_seed(data_seed(trainer.args))
        lengths = _lengths(trainer, eval_dataset)
        return LengthGroupedSampler(trainer.args.eval_batch_size, lengths=lengths, generator=generator)
    return SequentialSampler(eval_dataset)


def _lengths(trainer: Trainer, dataset: Any) -> list[int]:
    names = getattr(trainer.processing_class, "model_input_names", None)
    return lengths_of(dataset, names[0] if names else None, trainer.args.length_column_name)
