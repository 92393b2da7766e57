"""The strategy for one process and one device, and the base of all strategies.

Accelerate prepares the model and the optimizer. The training step then calls the plain objects inside Accelerate's
wrappers, because the wrappers cost time in every step.
"""

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
from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.optim import Optimizer

from footplate.contract.arguments import TrainingArguments
from footplate.trainer import checkpoint as files
from footplate.trainer.accelerator_config import AcceleratorConfig
from footplate.trainer.callbacks import CallbackHandler
from footplate.trainer.precision import LossScale, autocast, compute_in_fp8, fp8_handlers, precision_of
from footplate.trainer.samplers import ALL_DATA, DataShard
from footplate.trainer.strategies.device_copy import StreamCopy, moved
from footplate.trainer.strategies.fp32_outputs import Fp32Outputs
from footplate.trainer.strategies.peers import OneProcess

T = TypeVar("T")
BuildArguments = Callable[..., dict[str, Any]]
"""A function that receives the arguments for Accelerator and returns those to use."""


class Single:
    """One process on one device. Its methods are the interface of all strategies, so the loop needs no branches."""

    readers: OneProcess
    """The processes that read different batches. If groups of processes compute one batch together, these are the
    processes that have the same index as this one in their group. Otherwise they are all processes."""
    tensor_parallel = context_parallel = sequence_parallel = 1
    """The number of processes that compute one batch together, for each way to split a batch. 1 means that each process
    computes batches of its own."""

    makes_steps_together = False
    """True if several processes make each optimizer step together."""
    loss_factor = 1
    """The factor for a loss that is already divided by the item count of all processes. It undoes the average that the
    strategy takes of the processes' gradients."""
    writes_shards = False
    """True if a checkpoint holds one shard per process. False if the main process gathers and writes all of it."""
    holds_whole = True
    """True if each process has the complete model."""

    moves_model = True
    """False for a model whose layers must stay on the devices on which they were loaded."""

    def __init__(
        self, args: TrainingArguments, peers: OneProcess | None = None, *, build: BuildArguments = dict
    ) -> None:
        self.peers = self.readers = peers or OneProcess()
        self.args = args
        self.accelerator_config = AcceleratorConfig.of(args.accelerator_config)
        self.accelerator_config.refuse_unsupported(self.peers.world)
        args.gradient_accumulation_steps = self.accelerator_config.accumulates(args.gradient_accumulation_steps)
        self.precision = precision_of(args)
        # Accelerate needs a GPU for fp16. On a CPU, autocast is put around forward here instead.
        self._casts = self.precision == "fp16" and (args.use_cpu or not torch.cuda.is_available())
        precision = "no" if self._casts else self.precision
        # Accelerate recognises several processes on CPUs only if cpu is set.
        on_cpu = args.use_cpu or (self.peers.world > 1 and not torch.cuda.is_available())
        if not self.accelerator_config.use_configured_state:
            _forget_other_settings(precision, use_cpu=on_cpu)
        # For loaders that users pass to Accelerate themselves: a shuffled one then has Hugging Face's order.
        loading = DataLoaderConfiguration(**self.accelerator_config.of_loaders(), data_seed=args.data_seed)
        self.accelerator = Accelerator(
            **build(
                mixed_precision=precision,
                cpu=on_cpu,
                dataloader_config=loading,
                kwargs_handlers=[DistributedDataParallelKwargs(**ddp_options(args)), *fp8_handlers(self.precision)],
            )
        )
        self.device: torch.device = self.accelerator.device
        self._copy: Callable[[Any], Any] | None = None
        if self.device.type != "cpu":
            self._copy = StreamCopy(self.device) if self.device.type == "cuda" else partial(moved, device=self.device)
        self.scale: LossScale | None = None
        self.fp32_outputs = Fp32Outputs()

    def place(self, model: nn.Module) -> nn.Module:
        """Moves the model to the device, before the optimizer is created."""
        return model.to(self.device)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        if self.precision == "fp8":
            compute_in_fp8(model)
        model, optimizer = self._place(model), self.accelerator.prepare(optimizer)
        if self.precision == "fp16":
            self.scale = LossScale(self.plain_optimizer(optimizer), self.device)
            # Accelerate and the Trainer use one scaler, because a user's training_step may call accelerator.backward.
            self.accelerator.scaler = self.scale.scaler = self.accelerator.scaler or self.scale.scaler
        return model, optimizer

    def _cast(self, model: nn.Module) -> nn.Module:
        if self._casts:
            self.fp32_outputs.is_on = True
            original_forward = model.forward

            @functools.wraps(original_forward)
            def forward(*args: Any, **kwargs: Any) -> Any:
                with autocast(self.precision, self.device):
                    return self.fp32_outputs.convert(original_forward(*args, **kwargs))

            model.forward = forward
        return model

    def prepare_for_evaluation(self, model: nn.Module) -> nn.Module:
        return self._place(model)

    def drop_gathered_weights(self, model: nn.Module) -> None:
        """Drops whole weights that an evaluation has gathered. The optimizer may change the shards afterwards."""

    def _place(self, model: nn.Module) -> nn.Module:
        """Prepares the model with Accelerate, and wraps `forward` in autocast once per model.

        `evaluation_mode` is always set. Without it, Accelerate would also wrap the model in DDP under a launcher.
        """
        if model in self.accelerator._models:
            return model
        options = {} if self.moves_model else {"device_placement": False}
        placed: nn.Module = self.accelerator.prepare_model(self._cast(model), evaluation_mode=True, **options)
        return self.fp32_outputs.replace_conversion(placed)

    def prepare_loader(self, loader: Any) -> Any:
        prepared = self.accelerator.prepare(loader)
        # Accelerate keeps a list of all loaders, which would grow, because each evaluation makes a new one.
        self.accelerator._dataloaders.clear()
        return prepared

    def plain_optimizer(self, optimizer: Any) -> Optimizer:
        """Returns torch's optimizer inside Accelerate's wrapper. The wrapper would cost time in every step."""
        plain: Optimizer = getattr(optimizer, "optimizer", optimizer)
        return plain

    def only_in_optimizer(self, model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
        """Returns the parameters that only the optimizer has. A step clears their gradients as well."""
        ids = {id(parameter) for parameter in model.parameters()}
        return [
            parameter for group in optimizer.param_groups for parameter in group["params"] if id(parameter) not in ids
        ]

    def step_of(self, optimizer: Any) -> Callable[[], Any]:
        """Returns the function that makes a step: that of the optimizer, or of the loss scale around it."""
        return (self.scale or self.plain_optimizer(optimizer)).step

    def plain_loader(self, loader: Any) -> Any:
        """Returns the loader without Accelerate's wrapper, which reads one batch ahead and synchronises ranks."""
        return getattr(loader, "base_dataloader", loader)

    def batch_size(self, size: int) -> int:
        """Returns the batch size of one process. `split_batches` divides the requested size by the processes."""
        world = self.readers.world
        if not self.accelerator_config.split_batches or world == 1:
            return size
        if size % world:
            raise ValueError(
                f"split_batches shares a batch of {size} among {world} processes, and {size} is not a multiple of "
                f"{world}: change per_device_train_batch_size or per_device_eval_batch_size, or leave split_batches out"
            )
        return size // world

    def data_shard(self, *, evens: bool) -> DataShard:
        """Returns the shard of the data that this process reads."""
        if self.peers.world == 1:
            return ALL_DATA
        rank, world = self.readers.rank, self.readers.world
        # Processes that compute one batch together read the same shard, so all use one order.
        return DataShard(rank, world, evens and world > 1, self.peers.from_main)

    def callback_handler(self, *args: Any) -> CallbackHandler:
        return CallbackHandler(*args)

    def is_uneven(self, loader: Any) -> bool:
        """Returns True if a process may get a smaller batch than another, or fewer batches."""
        return False

    def skip_gradient_sync(self, model: nn.Module, skips: bool) -> None:
        """Skips the gradient exchange of the next backward if `skips` is true.

        The gradients of an accumulation window are exchanged once, in its last micro-batch.
        """

    def epoch(self, epoch: Iterator[Any], loader: Any) -> Iterator[Any]:
        """Returns the batches of an epoch, the same number in every process."""
        return epoch

    def batches(self, opened: Iterator[Any]) -> Iterator[Any]:
        """Returns the batches of an evaluation, the same number in every process."""
        return opened

    def gather_outputs(self, batch: tuple[Any, ...], *, counts: bool, shares: bool) -> Sequence[tuple[Any, ...]]:
        """Returns the outputs of all processes for one evaluation batch if `shares`, else only this process's."""
        return (batch,)

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

    def whole_weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        """Returns all weights on this process. Returns None if `model.state_dict()` has them anyway."""
        return None

    def elements(self, parameter: nn.Parameter) -> int:
        """Returns the number of elements of the whole parameter, even if this process has only a shard."""
        return parameter.numel()

    def total_elements(self, elements: int) -> int:
        """Returns the element count of the whole model, if this process's parameters have `elements` elements."""
        return elements

    def original_names(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Gives parameters the names of the unwrapped model inside the `with` block."""
        return nullcontext()

    def keep_whole_weights(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Gathers the weights once, so that `whole_weights` does not wait for other processes in the `with` block."""
        return nullcontext()

    def local_save(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Lets the model's own save method run without waiting for other processes inside the `with` block."""
        return nullcontext()

    def save_from_main(self, commit: Callable[[], T], follow: Callable[[], None]) -> T:
        """Runs `commit` on the process that writes and `follow` on the others; returns the writer's result to all."""
        return commit()

    def save_shards(self, commit: Callable[[Callable[[Path], None]], T], pieces: Callable[[Path], None]) -> T:
        """Lets every process write its shard into the folder that the main process opens and commits."""
        return commit(pieces)

    def readable_folder(self, folder: Path, is_wanted: Callable[[str], bool]) -> AbstractContextManager[Path]:
        """Yields a folder in which this process can read the main process's files that `is_wanted` selects by name."""
        return nullcontext(folder)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return self.plain_optimizer(optimizer).state_dict()

    def load_weights(self, model: nn.Module, folder: Path) -> None:
        """Loads the weights from one file, or from the shards of several processes."""
        if files.is_sharded(folder):
            from footplate.trainer.strategies import shards

            return shards.load_model(model, folder)
        return files.load_weights(model, folder)

    def stored_optimizer(self, optimizer: Optimizer, folder: Path) -> dict[str, Any]:
        if files.is_sharded(folder):
            from footplate.trainer.strategies import shards

            return shards.load_optimizer(optimizer, folder)
        state: dict[str, Any] = files.load_tensors(folder, files.OPTIMIZER)
        return state

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        optimizer.load_state_dict(state)

    def release(self, *, all_but: nn.Module) -> None:
        """Drops prepared objects, so that a second `train()` starts clean. The model `all_but` stays prepared."""
        # Models that model_init made for earlier runs would fill the device.
        self.accelerator._models[:] = [prepared for prepared in self.accelerator._models if prepared is all_but]
        self.accelerator._optimizers.clear()
        self.accelerator._schedulers.clear()
        self.scale = None


def ddp_options(args: TrainingArguments) -> dict[str, Any]:
    """Returns the options of torch's DistributedDataParallel, with Hugging Face's defaults."""
    finds_unused = args.ddp_find_unused_parameters
    options = {
        "find_unused_parameters": not args.activation_checkpointing if finds_unused is None else finds_unused,
        "bucket_cap_mb": args.ddp_bucket_cap_mb,
        "broadcast_buffers": args.ddp_broadcast_buffers,
        "static_graph": args.ddp_static_graph,
    }
    return {name: value for name, value in options.items() if value is not None}


def _forget_other_settings(precision: str, *, use_cpu: bool) -> None:
    """Resets Accelerate's global settings if this run needs other ones, because Accelerate refuses to change them."""
    state, shared = AcceleratorState._shared_state, PartialState._shared_state
    if state:
        state["parallelism_config"] = None
    other_device = bool(shared) and shared.get("_cpu") != use_cpu
    if state and (state.get("_mixed_precision") != precision or other_device):
        AcceleratorState._reset_state(reset_partial_state=other_device)
    elif other_device:
        PartialState._reset_state()
