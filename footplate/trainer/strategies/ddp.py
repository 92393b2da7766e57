"""The DDP strategy: each process has the whole model, gradients are averaged in backward, and all make the same step.

The sharded strategies inherit from this class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from footplate.contract.arguments import TrainingArguments
from footplate.contract.errors import DatasetError, NotAvailableYet
from footplate.trainer.callbacks import CallbackHandler
from footplate.trainer.data_stream import StreamShard
from footplate.trainer.launcher import Place
from footplate.trainer.precision import precision_of
from footplate.trainer.samplers import DataShard
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.strategies import shared_folder
from footplate.trainer.strategies.device_copy import map_tensors, tensors_in
from footplate.trainer.strategies.peers import OneProcess, PaddingBatch, Peers, gather_values, require_tensors
from footplate.trainer.strategies.single import BuildArguments, Single, ddp_options

T = TypeVar("T")


class Ddp(Single):
    peers: Peers
    makes_steps_together = True

    def __init__(self, args: TrainingArguments, place: Place, *, build: BuildArguments = dict) -> None:
        if args.auto_find_batch_size:
            raise ValueError(
                f"auto_find_batch_size splits a batch in one process only, but this run has {place.world} processes: "
                "set a smaller per_device_train_batch_size with more gradient_accumulation_steps"
            )
        if args.save_in_background:
            raise ValueError(
                f"save_in_background works in one process only, but {place.world} processes write a checkpoint "
                "together: leave save_in_background out, or train in one process"
            )
        if precision_of(args) == "fp8" and (self.context_parallel > 1 or not self.holds_whole):
            raise NotAvailableYet(
                f"fp8 replaces layers of the model, but {type(self).__name__} cannot shard such layers or their inputs",
                hint="use bf16, or train in fp8 with DDP or in one process",
            )
        has_gpu = torch.cuda.is_available() and not args.use_cpu
        device = place.gpu if has_gpu else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        peers = Peers(place, args.ddp_backend, timedelta(seconds=args.ddp_timeout), device)
        super().__init__(args, peers, build=build)
        self.readers = peers.with_same_index(self.tensor_parallel * self.context_parallel)
        self.loss_factor = self.readers.world if args.average_tokens_across_devices else 1
        self._wrapped: dict[nn.Module, nn.Module] = {}
        self._knows_graph = False

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        _, optimizer = super().prepare(model, optimizer)
        return self._wrap(model), optimizer

    def _wrap(self, model: nn.Module) -> nn.Module:
        """Returns the model in the wrapper of the strategy, which is made once for each model."""
        if model not in self._wrapped:
            self._wrapped[model] = self._make_wrapper(model)
        return self._wrapped[model]

    def _make_wrapper(self, model: nn.Module) -> nn.Module:
        """Wraps a placed model in DDP, which also copies the main process's weights to all processes."""
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        device_ids = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=device_ids, **ddp_options(self.args))

    def prepare_for_evaluation(self, model: nn.Module) -> nn.Module:
        """Returns the unwrapped model, so that no process waits for another in forward.

        Buffers are first copied from the main process, as in every forward of training. A checkpoint stores the buffers
        of that process.
        """
        wrapped = self._wrapped.get(model)
        if isinstance(wrapped, DistributedDataParallel) and wrapped.will_sync_module_buffers():  # type: ignore[no-untyped-call]
            wrapped._sync_buffers()  # type: ignore[no-untyped-call]
        return super().prepare_for_evaluation(model)

    def prepare_loader(self, loader: Any) -> Any:
        """Returns the loader unchanged, because our own loaders read only this process's shard."""
        return loader

    def plain_loader(self, loader: Any) -> Any:
        return loader

    def callback_handler(self, *args: Any) -> CallbackHandler:
        return AgreeingHandler(self.peers, *args)

    def is_uneven(self, loader: Any) -> bool:
        if self.readers.world == 1:
            return False
        shard = getattr(getattr(loader, "batch_sampler", None), "shard", None)
        is_stream = isinstance(getattr(loader, "dataset", None), StreamShard)
        return is_stream or (isinstance(shard, DataShard) and not shard.evens)

    def epoch(self, epoch: Iterator[Any], loader: Any) -> Iterator[Any]:
        batches = lockstep(epoch, self.readers) if self.is_uneven(loader) else epoch
        size = self.tensor_parallel * self.context_parallel
        return batches if size == 1 else require_same_batch(batches, self.peers, size)

    def batches(self, opened: Iterator[Any]) -> Iterator[Any]:
        return lockstep(opened, self.readers)

    def gather_outputs(self, batch: tuple[Any, ...], *, counts: bool, shares: bool) -> Sequence[tuple[Any, ...]]:
        if not shares or self.readers.world == 1:
            return [batch] if counts else []
        objects = self.args.eval_use_gather_object
        if not objects:
            require_tensors(batch)
        return gather_values(batch, self.readers, counts=counts, objects=objects)

    def skip_gradient_sync(self, model: nn.Module, skips: bool) -> None:
        if isinstance(model, DistributedDataParallel):
            # The first backward records a static graph, and must exchange gradients.
            learns = model.static_graph and not self._knows_graph
            self._knows_graph = True
            model.require_backward_grad_sync = learns or not skips

    # Files

    def save_from_main(self, commit: Callable[[], T], follow: Callable[[], None]) -> T:
        work: Callable[[], Any] = commit if self.args.should_save else follow
        result: T = self.peers.gather_results(work)[0]
        return result

    def readable_folder(self, folder: Path, is_wanted: Callable[[str], bool]) -> AbstractContextManager[Path]:
        return shared_folder.readable_folder(self.peers, folder, Path(self.args.output_dir or "."), is_wanted)

    def release(self, *, all_but: nn.Module) -> None:
        super().release(all_but=all_but)
        self._wrapped = {model: wrapped for model, wrapped in self._wrapped.items() if model is all_but}


# The flags of callbacks

FLAGS = tuple(field.name for field in fields(TrainerControl))
_STOPS = ("should_training_stop", "should_epoch_stop")


class AgreeingHandler(CallbackHandler):
    """A CallbackHandler that exchanges the control flags after every step, epoch and evaluation.

    Logs and saves may run in one process alone, so flags are not exchanged after them. A stop that is requested in
    `on_log` or `on_save` takes effect at the next exchange.
    """

    def __init__(self, peers: OneProcess, *args: Any) -> None:
        self._peers, self._postponed = peers, dict.fromkeys(FLAGS, False)
        super().__init__(*args)

    def call_event(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **extra: Any
    ) -> TrainerControl:
        if event in ("on_step_end", "on_epoch_end", "on_evaluate"):
            return self._agreed(super().call_event(event, args, state, control, **extra))
        if event not in ("on_log", "on_save"):
            return super().call_event(event, args, state, control, **extra)
        before = [getattr(control, name) for name in _STOPS]
        control = super().call_event(event, args, state, control, **extra)
        for name, was_set in zip(_STOPS, before, strict=True):
            if getattr(control, name) and not was_set:
                self._postponed[name] = True
                setattr(control, name, False)
        return control

    def _agreed(self, control: TrainerControl) -> TrainerControl:
        flags = [flag or self._postponed[name] for name, flag in zip(FLAGS, astuple(control), strict=True)]
        for name, flag in zip(FLAGS, self._peers.any(flags), strict=True):
            setattr(control, name, flag)
            self._postponed[name] = False
        return control


# Batches

_NONE = object()


def lockstep(batches: Iterator[Any], peers: OneProcess) -> Iterator[Any]:
    """Yields the same number of batches in every process. A process that has none left yields PaddingBatches.

    Padding is a copy of a batch of the same round. The last own batch of a process would be cheaper, but a process that
    resumes at this round does not have it. With padding of another size, dropout would draw other numbers.
    """
    while True:
        batch = next(batches, _NONE)
        have = peers.all_gather(batch is not _NONE)
        if not any(have):
            return
        source = have.index(True)
        if not all(have):
            shared: Any = map_tensors(batch, lambda leaf: leaf.cpu()) if peers.rank == source else None
            padding = PaddingBatch(peers.all_gather(shared)[source])
        yield padding if batch is _NONE else batch


def require_same_batch(batches: Iterator[Any], peers: OneProcess, size: int) -> Iterator[Any]:
    """Yields an epoch's batches. Raises DatasetError if the processes of a group have different first batches."""
    first_batch = next(batches, None)
    start = peers.rank // size * size
    group = range(start, start + size)
    digests = peers.all_gather(_digest(first_batch))
    if len({digests[rank] for rank in group}) > 1:
        raise DatasetError(
            f"processes {group[0]} to {group[-1]} compute every batch together, but have read different first batches "
            "of an epoch: random choices in a dataset or collator must come from generators "
            "that the seed sets (random, NumPy, torch), or follow from the sample's number"
        )
    if first_batch is not None:
        yield first_batch
        yield from batches


def _digest(batch: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors_in(batch):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
