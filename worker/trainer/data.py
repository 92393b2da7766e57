"""Datasets to loaders, and loaders to epochs that can start anywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from contract.arguments import TrainingArguments
from worker.trainer.losses import items
from worker.trainer.samplers import Batches

log = logging.getLogger("footplate.trainer")

Collator = Callable[[Sequence[Any]], Any]


def has_length(dataset: object) -> bool:
    try:
        return isinstance(dataset, Sized) and len(dataset) is not None
    except (TypeError, NotImplementedError):
        return False


def make_loader(
    dataset: Any, args: TrainingArguments, collator: Collator, batch_size: int, sampler: Sampler[int] | None
) -> DataLoader[Any]:
    """A torch loader with a private generator: torch's own would draw from the generator that dropout uses."""
    options: dict[str, Any] = {
        "collate_fn": collator,
        "num_workers": args.dataloader_num_workers,
        # Pinning runs a thread of its own, and on a CPU it pins for nobody.
        "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available() and not args.use_cpu,
        "persistent_workers": args.dataloader_persistent_workers,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "generator": torch.Generator(),
    }
    if isinstance(dataset, IterableDataset) or sampler is None:
        return DataLoader(dataset, batch_size=batch_size, drop_last=args.dataloader_drop_last, **options)
    return DataLoader(dataset, batch_sampler=Batches(sampler, batch_size, args.dataloader_drop_last), **options)


def epoch_batches(loader: Any, *, seed: int, epoch: int, skip: int = 0) -> Iterator[Any]:
    """The epoch's batches from number `skip` on. With our own sampler nothing is read that is not used."""
    if getattr(loader, "generator", None) is not None:
        # Seeds the loading processes; a function of the epoch alone, so that a resumed epoch has the same ones.
        loader.generator.manual_seed((seed + epoch) % 2**63)
    batches = getattr(loader, "batch_sampler", None)
    for part in (batches, getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
        set_epoch = getattr(part, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
    if isinstance(batches, Batches):
        batches.start_at(skip)
        return iter(loader)
    if skip:
        log.warning("this loader has no place to start from: reading and leaving out %d batches", skip)
    return islice(iter(loader), skip, None)


def draw_and_discard() -> None:
    """Iterating a plain torch loader draws one number from the global generator, and dropout on CPU follows it.

    Ours draws from its own. So that the same seed gives the same curve as the reference's, we draw that number too.
    """
    torch.empty((), dtype=torch.int64).random_()


class DropUnused:
    """A collator that leaves out of dict samples what the model does not take, and says once what that was."""

    def __init__(self, collator: Collator, keep: Sequence[str]) -> None:
        self.collator, self.keep, self._told = collator, frozenset(keep), False

    def __call__(self, features: Sequence[Any]) -> Any:
        if not isinstance(features[0], Mapping):
            return self.collator(features)
        dropped = [name for name in features[0] if name not in self.keep]
        if dropped and not self._told:
            self._told = True
            log.warning(
                "left out of the data, because forward does not take them: %s. remove_unused_columns=False keeps them",
                ", ".join(map(str, dropped)),
            )
        if not dropped:
            return self.collator(features)
        if len(dropped) == len(features[0]):
            raise ValueError(
                f"the model's forward takes {', '.join(sorted(self.keep))}, and the data has none of them, only: "
                f"{', '.join(map(str, dropped))}"
            )
        return self.collator([{k: v for k, v in feature.items() if k in self.keep} for feature in features])


def batch_length(batch: Any) -> int:
    """How many samples a batch holds."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else [batch]
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return int(value.shape[0])
    return 1


def count_items(batches: Sequence[Any], device: torch.device, *, shifts: bool) -> torch.Tensor | None:
    """How many labels count in a window of micro-batches; None where they have none that can be counted."""
    counts = []
    for batch in batches:
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, torch.Tensor):
            return None
        if "shift_labels" in batch:
            labels = batch["shift_labels"]
        elif shifts:
            labels = labels[..., 1:]
        counts.append(items(labels))
    return torch.stack(counts).sum().to(device, non_blocking=True) if counts else None
