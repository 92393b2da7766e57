"""Makes the Trainer's data loaders: the data, its order and its batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from footplate.contract import arguments as contract_arguments
from footplate.trainer.data import DropUnused, has_length, make_loader, require_samples, without_columns
from footplate.trainer.facade import Facade
from footplate.trainer.samplers import BatchRebalanceSampler, EpochSampler, LengthGroupedSampler, lengths_of
from footplate.trainer.seeds import data_seed


def get_train_dataloader(trainer: Facade) -> Any:
    if trainer.train_dataset is None:
        raise ValueError("training needs a train_dataset")
    sampler = trainer._get_train_sampler(trainer.train_dataset)
    evens = trainer._footplate.strategy.accelerator_config.even_batches
    return _loader(trainer, trainer.train_dataset, trainer._train_batch_size, sampler, evens=evens)


def get_eval_dataloader(trainer: Facade, eval_dataset: Any = None) -> Any:
    """Returns a loader. With persistent workers, each of the Trainer's own sets gets one loader that is kept."""
    dataset = trainer.eval_dataset if eval_dataset is None else eval_dataset
    if isinstance(dataset, str):
        dataset = _named_set(trainer, dataset)
    if dataset is None:
        raise ValueError("evaluation needs an eval_dataset")
    is_ours = eval_dataset is None or isinstance(eval_dataset, str)
    cached = trainer._footplate.eval_loaders.get(eval_dataset) if is_ours else None
    if cached is not None and cached[0] is dataset:
        return cached[1]
    loader = _loader(trainer, dataset, trainer.args.eval_batch_size, trainer._get_eval_sampler(dataset))
    if is_ours and trainer.args.dataloader_persistent_workers:
        trainer._footplate.eval_loaders[eval_dataset] = (dataset, loader)
    return loader


def _named_set(trainer: Facade, name: str) -> Any:
    sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, Mapping) else {}
    if name not in sets:
        raise KeyError(f"eval_dataset has no set {name!r}: there is {', '.join(map(str, sets)) or 'one, unnamed'}")
    return sets[name]


def get_test_dataloader(trainer: Facade, test_dataset: Any) -> Any:
    return _loader(trainer, test_dataset, trainer.args.eval_batch_size, trainer._get_eval_sampler(test_dataset))


def _loader(
    trainer: Facade, dataset: Any, batch_size: int, sampler: Sampler[Any] | None, *, evens: bool = False
) -> Any:
    require_samples(dataset, "the data")
    collator = trainer.data_collator
    if trainer.args.remove_unused_columns and not trainer._footplate.model_signature.takes_anything:
        keep = [*_signature_columns(trainer), "labels"]
        dataset, collator = without_columns(dataset, keep), DropUnused(collator, keep)
    strategy = trainer._footplate.strategy
    size, share = strategy.batch_size(batch_size), strategy.share(evens=evens)
    return strategy.prepare_loader(make_loader(dataset, trainer.args, collator, size, sampler, share))


def _signature_columns(trainer: Facade) -> list[str]:
    """Returns the names of columns that the model takes, with all names that labels may have."""
    return [*(trainer._footplate.model_signature.arguments or ("x",)), "label", "label_ids", *trainer.label_names]


def train_sampler(trainer: Facade, train_dataset: Any) -> Sampler[Any] | None:
    dataset = trainer.train_dataset if train_dataset is None else train_dataset
    if not has_length(dataset):
        return None
    args = trainer.args
    if args.train_sampling_strategy == "sequential":
        return SequentialSampler(dataset)
    if args.train_sampling_strategy == "random":
        return EpochSampler(dataset, data_seed(trainer.args))
    lengths, step = _lengths(trainer, dataset), trainer.get_total_train_batch_size(args)
    if args.train_sampling_strategy == "group_by_length":
        return LengthGroupedSampler(step, lengths=lengths)
    groups = args.gradient_accumulation_steps * trainer._footplate.strategy.readers.world
    return BatchRebalanceSampler(lengths, step, groups, drop_last=args.dataloader_drop_last)


def eval_sampler(trainer: Facade, eval_dataset: Any) -> Sampler[Any] | None:
    if not has_length(eval_dataset):
        return None
    if trainer.args.train_sampling_strategy == "group_by_length":
        generator = torch.Generator().manual_seed(data_seed(trainer.args))
        lengths = _lengths(trainer, eval_dataset)
        return LengthGroupedSampler(trainer.args.eval_batch_size, lengths=lengths, generator=generator)
    return SequentialSampler(eval_dataset)


def _lengths(trainer: Facade, dataset: Any) -> list[int]:
    names = getattr(trainer.processing_class, "model_input_names", None)
    return lengths_of(dataset, names[0] if names else None, trainer.args.length_column_name)


def get_total_train_batch_size(trainer: Facade, args: contract_arguments.TrainingArguments) -> int:
    """Returns the number of samples of one optimizer step, over all processes."""
    size = trainer._footplate.strategy.batch_size(trainer._train_batch_size)
    return size * args.gradient_accumulation_steps * trainer._footplate.strategy.readers.world


def num_examples(trainer: Facade, dataloader: DataLoader[Any]) -> int:
    dataset = getattr(dataloader, "dataset", None)
    if has_length(dataset):
        return len(dataset)  # type: ignore[arg-type]
    return len(dataloader) * trainer._train_batch_size if has_length(dataloader) else 0
