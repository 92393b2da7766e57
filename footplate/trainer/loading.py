"""The Trainer's loaders: which data, in which order, in which batches. All made for overriding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from footplate.contract import arguments as contract_arguments
from footplate.trainer.data import DropUnused, has_length, make_loader, require_samples, without_columns
from footplate.trainer.parts import Parts
from footplate.trainer.samplers import BatchRebalanceSampler, EpochSampler, LengthGroupedSampler, lengths_of


class Loading(Parts):
    def get_train_dataloader(self) -> Any:
        if self.train_dataset is None:
            raise ValueError("training needs a train_dataset")
        sampler = self._get_train_sampler(self.train_dataset)
        evens = self.strategy.accelerator_config.even_batches
        return self._loader(self.train_dataset, self._train_batch_size, sampler, evens=evens)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Where loading processes persist, the loader of each of our own sets is made once: it holds them."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self._named_set(dataset)
        if dataset is None:
            raise ValueError("evaluation needs an eval_dataset")
        is_ours = eval_dataset is None or isinstance(eval_dataset, str)
        kept = self._eval_loaders.get(eval_dataset) if is_ours else None
        if kept is not None and kept[0] is dataset:
            return kept[1]
        loader = self._loader(dataset, self.args.eval_batch_size, self._get_eval_sampler(dataset))
        if is_ours and self.args.dataloader_persistent_workers:
            self._eval_loaders[eval_dataset] = (dataset, loader)
        return loader

    def _named_set(self, name: str) -> Any:
        sets = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {}
        if name not in sets:
            raise KeyError(f"eval_dataset has no set {name!r}: there is {', '.join(map(str, sets)) or 'one, unnamed'}")
        return sets[name]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        return self._loader(test_dataset, self.args.eval_batch_size, self._get_eval_sampler(test_dataset))

    def _loader(self, dataset: Any, batch_size: int, sampler: Sampler[Any] | None, *, evens: bool = False) -> Any:
        require_samples(dataset, "the data")
        collator = self.data_collator
        if self.args.remove_unused_columns and not self.anatomy.takes_anything:
            keep = [*self._signature_columns, "labels"]
            dataset, collator = without_columns(dataset, keep), DropUnused(collator, keep)
        size, share = self.strategy.batch_size(batch_size), self.strategy.share(evens=evens)
        return self.strategy.prepare_loader(make_loader(dataset, self.args, collator, size, sampler, share))

    @property
    def _signature_columns(self) -> list[str]:
        """What the model takes of a sample, labels under any of their names."""
        return [*(self.anatomy.arguments or ("x",)), "label", "label_ids", *self.label_names]

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not has_length(dataset):
            return None
        args = self.args
        if args.train_sampling_strategy == "sequential":
            return SequentialSampler(dataset)
        if args.train_sampling_strategy == "random":
            return EpochSampler(dataset, self.data_seed)
        lengths, step = self._lengths(dataset), self.get_total_train_batch_size(args)
        if args.train_sampling_strategy == "group_by_length":
            return LengthGroupedSampler(step, lengths=lengths)
        groups = args.gradient_accumulation_steps * self.strategy.readers.world
        return BatchRebalanceSampler(lengths, step, groups, drop_last=args.dataloader_drop_last)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[Any] | None:
        if not has_length(eval_dataset):
            return None
        if self.args.train_sampling_strategy == "group_by_length":
            generator = torch.Generator().manual_seed(self.data_seed)
            lengths = self._lengths(eval_dataset)
            return LengthGroupedSampler(self.args.eval_batch_size, lengths=lengths, generator=generator)
        return SequentialSampler(eval_dataset)

    def _lengths(self, dataset: Any) -> list[int]:
        names = getattr(self.processing_class, "model_input_names", None)
        return lengths_of(dataset, names[0] if names else None, self.args.length_column_name)

    @property
    def data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def get_total_train_batch_size(self, args: contract_arguments.TrainingArguments) -> int:
        """Samples that one optimizer step sees, over all processes."""
        size = self.strategy.batch_size(self._train_batch_size)
        return size * args.gradient_accumulation_steps * self.strategy.readers.world

    def get_tp_size(self) -> int:
        return self.strategy.tensor_parallel

    def get_cp_size(self) -> int:
        return self.strategy.context_parallel

    def get_sp_size(self) -> int:
        return self.strategy.sequence_parallel

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        dataset = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            return len(dataset)  # type: ignore[arg-type]
        return len(dataloader) * self._train_batch_size if has_length(dataloader) else 0
