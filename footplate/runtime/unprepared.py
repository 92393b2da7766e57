"""Of a loop in several processes: what trains without having been prepared is told by its name, before it does harm.

Each process would otherwise train a model of its own, on all of the data, and nothing would look wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from footplate.contract.errors import OwnCodeError


class Watch:
    """Looks when an optimizer steps for the first time, and for its schedule when it does so again."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._steps: dict[int, int] = {}
        self._handle = register_optimizer_step_pre_hook(self._look)

    def end(self) -> None:
        self._handle.remove()

    def _look(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        step = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if step == 1:
            self._at_first(optimizer)
        elif step == 2:
            self._schedule_of(optimizer)

    def _at_first(self, optimizer: Optimizer) -> None:
        prepared = self._accelerator
        if all(each.optimizer is not optimizer for each in prepared._optimizers):
            raise _told("optimizer", optimizer, "it would step at what one process saw, and be in no checkpoint")
        shared = {id(each) for model in prepared._models for each in model.parameters()}
        if not any(id(each) in shared for group in optimizer.param_groups for each in group["params"]):
            raise _told("model", None, "each process would train one of its own")
        under_way = list(_batches_under_way())
        if under_way and not prepared._dataloaders and not any(_is_shared(each) for each in under_way):
            raise _told("data loader", None, "each process would read all of it")

    def _schedule_of(self, optimizer: Optimizer) -> None:
        known = {id(each) for found in self._accelerator._schedulers for each in _with_parts(found.scheduler)}
        for each in _alive(LRScheduler):
            if id(each) in known or isinstance(each, ReduceLROnPlateau):
                continue
            # One that steps after each epoch has not done so yet.
            if each.optimizer is optimizer and each._step_count > 1:
                raise _told("scheduler", each, "it would be in no checkpoint")


def _batches_under_way() -> Iterator[Any]:
    """Of sets that have an order, what picks their batches: a stream may have been shared out by its own code."""
    for each in _alive(_BaseDataLoaderIter):
        if each._dataset_kind == _DatasetKind.Map:
            yield each._index_sampler


def _alive(kind: type) -> list[Any]:
    # By its type: to ask some for their class would have them import something.
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def _is_shared(sampler: Any) -> bool:
    while sampler is not None:
        if isinstance(sampler, BatchSamplerShard | DistributedSampler) or hasattr(sampler, "num_replicas"):
            return True
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return False


def _with_parts(scheduler: Any) -> Iterator[Any]:
    yield scheduler
    for each in getattr(scheduler, "_schedulers", ()):
        yield from _with_parts(each)


def _told(what: str, it: object, because: str) -> OwnCodeError:
    name = f"its {what}" if it is None else f"its {what}, {type(it).__name__},"
    return OwnCodeError(
        f"the loop runs in several processes, and {name} was not prepared: {because}",
        hint=f"hand the {what} to job.accelerator.prepare(…)",
    )
