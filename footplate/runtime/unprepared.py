"""Stops an own loop in several processes if its model, loader, optimizer or scheduler was not passed to `prepare`.

Otherwise each process would train a model of its own on all of the data, without an error.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind
from torch.utils.hooks import RemovableHandle

from footplate.contract.errors import OwnCodeError


def require_prepared(accelerator: Accelerator) -> RemovableHandle:
    """Raises OwnCodeError if a loop did not pass its model, loader, optimizer or scheduler to Accelerator.prepare.

    The first three are checked at an optimizer's first step, its scheduler at the second step. The returned handle ends
    these checks.
    """
    steps: Counter[int] = Counter()

    def check(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        steps[id(optimizer)] += 1
        if steps[id(optimizer)] == 1:
            _check_first_step(accelerator, optimizer)
        elif steps[id(optimizer)] == 2:
            _check_scheduler(accelerator, optimizer)

    return register_optimizer_step_pre_hook(check)


def _check_first_step(prepared: Accelerator, optimizer: Optimizer) -> None:
    if all(wrapper.optimizer is not optimizer for wrapper in prepared._optimizers):
        why = "its steps would use the gradients of one process only, and checkpoints would not contain it"
        raise _error("optimizer", optimizer, why)
    shared = {id(parameter) for model in prepared._models for parameter in model.parameters()}
    if not any(id(parameter) in shared for group in optimizer.param_groups for parameter in group["params"]):
        raise _error("model", None, "each process would train a model of its own")
    # The samplers of loaders that are being read. Streams are left out, because their code may shard them.
    iterators = [item for item in _alive(_BaseDataLoaderIter) if item._dataset_kind == _DatasetKind.Map]
    samplers = [iterator._index_sampler for iterator in iterators]
    if samplers and not prepared._dataloaders and not any(map(_is_sharded, samplers)):
        raise _error("data loader", None, "each process would read all of the data")


def _check_scheduler(accelerator: Accelerator, optimizer: Optimizer) -> None:
    wrappers = accelerator._schedulers
    prepared = {id(part) for wrapper in wrappers for part in _with_parts(wrapper.scheduler)}
    for scheduler in _alive(LRScheduler):
        if id(scheduler) in prepared or isinstance(scheduler, ReduceLROnPlateau):
            continue
        # A scheduler that steps after each epoch has a step count of 1 here, and is not checked.
        if scheduler.optimizer is optimizer and scheduler._step_count > 1:
            raise _error("scheduler", scheduler, "checkpoints would not contain it")


def _alive(kind: type) -> list[Any]:
    # type() and not isinstance, because reading `__class__` of lazy modules imports them.
    return [item for item in gc.get_objects() if issubclass(type(item), kind)]


def _is_sharded(sampler: Any) -> bool:
    while sampler is not None:
        if isinstance(sampler, BatchSamplerShard | DistributedSampler) or hasattr(sampler, "num_replicas"):
            return True
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return False


def _with_parts(scheduler: Any) -> Iterator[Any]:
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _with_parts(part)


def _error(kind: str, item: object, because: str) -> OwnCodeError:
    name = f"its {kind}" if item is None else f"its {kind}, {type(item).__name__},"
    return OwnCodeError(
        f"the loop runs in several processes, and {name} was not prepared: {because}",
        hint=f"pass the {kind} to job.accelerator.prepare(…)",
    )
