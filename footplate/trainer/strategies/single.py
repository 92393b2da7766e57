"""One process, one device. Accelerate places and prepares; the hot step then calls what its wrappers wrap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DataLoaderConfiguration
from accelerate.utils.operations import convert_outputs_to_fp32
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from footplate.contract.arguments import TrainingArguments
from footplate.trainer import checkpoint as files
from footplate.trainer.accelerator_config import AcceleratorConfig
from footplate.trainer.callbacks import CallbackHandler
from footplate.trainer.precision import LossScale, autocast, compute_in_fp8, fp8_handlers, precision_of
from footplate.trainer.samplers import ALL, Share
from footplate.trainer.strategies.device_copy import Beside, moved
from footplate.trainer.strategies.peers import Alone

T = TypeVar("T")


class Single:
    """What the loop needs of a strategy. Others have the same methods; the loop never asks which one it has."""

    readers: Alone
    """Of those that compute one batch together, one from each group, this process among them: they read different
    batches. Without such groups, all processes."""
    tensor_parallel = context_parallel = sequence_parallel = 1
    """Over how many processes one batch is shared."""

    shares_steps = False
    """Several processes make each optimizer step together."""
    loss_factor = 1
    """By what a loss is multiplied that is already a share of all processes' items: gradients are their mean."""
    writes_shards = False
    """A checkpoint holds each process's pieces, instead of the whole that the main process has gathered."""
    holds_whole = True
    """Each process has all of the model."""
    generates_in_step = False
    """A model in pieces needs every process in every forward, also where its own text has ended."""

    moves_model = True
    """Some models have to stay where their parts were put when they were loaded."""

    def __init__(self, args: TrainingArguments, peers: Alone | None = None) -> None:
        self.peers = self.readers = peers or Alone()
        self.args = args
        self.accelerator_config = AcceleratorConfig.of(args.accelerator_config)
        self.accelerator_config.refuse_what_is_not_done(self.peers.world)
        args.gradient_accumulation_steps = self.accelerator_config.accumulates(args.gradient_accumulation_steps)
        self.precision = precision_of(args)
        # Accelerate wants a GPU for fp16; torch computes it anywhere, and then autocast is put around forward here.
        self._casts = self.precision == "fp16" and (args.use_cpu or not torch.cuda.is_available())
        precision = "no" if self._casts else self.precision
        # Accelerate knows of several processes on CPUs only where it is told that these are what is meant.
        on_cpu = args.use_cpu or (self.peers.world > 1 and not torch.cuda.is_available())
        _forget_other_settings(precision, use_cpu=on_cpu)
        # For loaders that users prepare themselves: a shuffled one then has the reference's order.
        loading = DataLoaderConfiguration(
            use_seedable_sampler=True, data_seed=args.data_seed, even_batches=self.accelerator_config.even_batches
        )
        self.accelerator = Accelerator(
            mixed_precision=precision,
            cpu=on_cpu,
            dataloader_config=loading,
            kwargs_handlers=[*self._handlers(), *fp8_handlers(self.precision)],
        )
        self.device: torch.device = self.accelerator.device
        self._copy: Callable[[Any], Any] | None = None
        if self.device.type != "cpu":
            self._copy = Beside(self.device) if self.device.type == "cuda" else partial(moved, device=self.device)
        self.scale: LossScale | None = None

    def _handlers(self) -> list[Any]:
        """What Accelerate is told of how processes work together."""
        return []

    def place(self, model: nn.Module) -> nn.Module:
        """On the device, before anything is made of it."""
        return model.to(self.device)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        if self.precision == "fp8":
            compute_in_fp8(model)
        model, optimizer = self._place(model), self.accelerator.prepare(optimizer)
        if self.precision == "fp16":
            self.scale = LossScale(self.plain_optimizer(optimizer), self.device)
            # One scale for both: a training step of the user's own may call accelerator.backward.
            self.accelerator.scaler = self.scale.scaler = self.accelerator.scaler or self.scale.scaler
        return model, optimizer

    def _cast(self, model: nn.Module) -> nn.Module:
        if self._casts:
            inner = model.forward

            @functools.wraps(inner)
            def forward(*args: Any, **kwargs: Any) -> Any:
                with autocast(self.precision, self.device):
                    return convert_outputs_to_fp32(inner)(*args, **kwargs)

            model.forward = forward
        return model

    def prepare_for_evaluation(self, model: nn.Module) -> nn.Module:
        return self._place(model)

    def _place(self, model: nn.Module) -> nn.Module:
        """Autocast is put around `forward` here: once, however often a model comes. Told that it is for training,
        Accelerate would wrap it in DDP too, wherever a launcher has started this process."""
        if model in self.accelerator._models:
            return model
        placed: nn.Module = self.accelerator.prepare_model(self._cast(model), self._placement, evaluation_mode=True)
        return placed

    @property
    def _placement(self) -> bool | None:
        """None leaves it to Accelerate, which moves what may be moved."""
        return None if self.moves_model else False

    def prepare_loader(self, loader: Any) -> Any:
        prepared = self.accelerator.prepare(loader)
        # Accelerate keeps every loader it has seen, and every evaluation makes one.
        self.accelerator._dataloaders.clear()
        return prepared

    def prepare_schedule(self, scheduler: LRScheduler) -> None:
        self.accelerator.prepare(scheduler)

    def plain_optimizer(self, optimizer: Any) -> Optimizer:
        """Accelerate's wrapper asks for scaler and accumulation at every step; one device in bf16 has neither."""
        plain: Optimizer = getattr(optimizer, "optimizer", optimizer)
        return plain

    def held_by_optimizer(self, model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
        """The parameters that the optimizer has and the model does not, whose gradients a step clears as well."""
        own = {id(each) for each in model.parameters()}
        return [each for group in optimizer.param_groups for each in group["params"] if id(each) not in own]

    def stepper(self, optimizer: Any) -> Any:
        """What steps: the optimizer, or the loss scale around it."""
        return self.scale or self.plain_optimizer(optimizer)

    def plain_loader(self, loader: Any) -> Any:
        """Its loader reads one batch ahead and synchronises ranks; one device needs neither."""
        return getattr(loader, "base_dataloader", loader)

    def batch_size(self, asked: int) -> int:
        """Of one process: `split_batches` shares what is asked for among them."""
        world = self.readers.world
        if not self.accelerator_config.split_batches or world == 1:
            return asked
        if asked % world:
            raise ValueError(
                f"split_batches shares a batch of {asked} among {world} processes, and {asked} is not a multiple of "
                f"{world}: change per_device_train_batch_size or per_device_eval_batch_size, or leave split_batches out"
            )
        return asked // world

    def share(self, *, evens: bool) -> Share:
        """Which part of the data this process reads."""
        if self.peers.world == 1:
            return ALL
        rank, world = self.readers.rank, self.readers.world
        # An order is agreed upon by all: those of a group read the same.
        return Share(rank, world, evens and world > 1, self.peers.first)

    def callback_handler(self, *args: Any) -> CallbackHandler:
        return CallbackHandler(*args)

    def is_uneven(self, loader: Any) -> bool:
        """Whether a process may come to have a smaller batch than another, or none."""
        return False

    def hold_back(self, model: nn.Module, holds: bool) -> None:
        """Whether the next backward keeps its gradients to itself: a window's last one sends those of all of it."""

    def epoch(self, epoch: Iterator[Any], loader: Any) -> Iterator[Any]:
        """Its batches: as many in every process."""
        return epoch

    def batches(self, opened: Iterator[Any]) -> Iterator[Any]:
        """Of an evaluation: the same."""
        return opened

    def seen(self, one: tuple[Any, ...], *, counts: bool, shares: bool) -> Sequence[tuple[Any, ...]]:
        """Of a round of an evaluation: what every process saw, where `shares` asks for that, else this one."""
        return (one,)

    def to_device(self, value: Any) -> Any:
        return value if self._copy is None else self._copy(value)

    def backward(self, loss: Tensor) -> None:
        if self.scale is not None:
            self.scale.backward(loss)
        else:
            loss.backward()  # type: ignore[no-untyped-call]

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        if self.scale is not None:
            return self.scale.clip(parameters, max_norm)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    # Files

    def whole_weights(self, model: nn.Module, *, _internal_call: bool = False) -> dict[str, Tensor] | None:
        """All of them, here, where `model.state_dict()` does not have them."""
        return None

    def elements(self, parameter: nn.Parameter) -> int:
        """Of all of it, wherever they are."""
        return parameter.numel()

    def in_all(self, elements: int) -> int:
        """Of the model's, where this process's parameters have so many."""
        return elements

    def named(self, model: nn.Module) -> AbstractContextManager[Any]:
        """While it lasts, modules and parameters have the names that they were made with."""
        return nullcontext()

    def gathered(self, model: nn.Module) -> AbstractContextManager[Any]:
        """While it lasts, `whole_weights` has them at hand: who writes them need not wait for others."""
        return nullcontext()

    def saves_alone(self, model: nn.Module) -> AbstractContextManager[Any]:
        """While it lasts, the model writes what it is handed, and waits for nobody."""
        return nullcontext()

    def written(self, commit: Callable[[], T], follow: Callable[[], None]) -> T:
        """What the process that writes has committed, told to all; who does not write follows."""
        return commit()

    def written_in_pieces(self, commit: Callable[[Callable[[Path], None]], T], pieces: Callable[[Path], None]) -> T:
        """Every process writes its own into the folder that the main process opens."""
        return commit(pieces)

    def brought(self, folder: Path, wants: Callable[[str], bool]) -> AbstractContextManager[Path]:
        """Where this process reads those files of it whose names are wanted: what the main process has there."""
        return nullcontext(folder)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return self.plain_optimizer(optimizer).state_dict()

    def load_weights(self, model: nn.Module, folder: Path) -> None:
        """Whole, or from the pieces that several processes wrote."""
        if files.is_in_pieces(folder):
            from footplate.trainer.strategies import shards

            return shards.load_model(model, folder)
        return files.load_weights(model, folder)

    def stored_optimizer(self, optimizer: Optimizer, folder: Path) -> dict[str, Any]:
        if files.is_in_pieces(folder):
            from footplate.trainer.strategies import shards

            return shards.load_optimizer(optimizer, folder)
        found: dict[str, Any] = files.load_tensors(folder, files.OPTIMIZER)
        return found

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        optimizer.load_state_dict(state)

    def forget(self, *, all_but: nn.Module) -> None:
        """Lets go of what was prepared, so that a second `train()` starts clean. This model stays prepared."""
        # What a model_init made for the runs before would fill the device.
        self.accelerator._models[:] = [each for each in self.accelerator._models if each is all_but]
        self.accelerator._optimizers.clear()
        self.accelerator._schedulers.clear()
        self.scale = None


def _forget_other_settings(precision: str, *, use_cpu: bool) -> None:
    """Accelerate keeps its settings per process, and refuses a second Trainer that wants others."""
    state, shared = AcceleratorState._shared_state, PartialState._shared_state
    if state:
        state["parallelism_config"] = None
    other_device = bool(shared) and shared.get("_cpu") != use_cpu
    if state and (state.get("_mixed_precision") != precision or other_device):
        AcceleratorState._reset_state(reset_partial_state=other_device)
    elif other_device:
        PartialState._reset_state()
