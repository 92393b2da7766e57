"""One process, one device. Accelerate places and prepares; the hot step then calls what its wrappers wrap."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DataLoaderConfiguration
from accelerate.utils.operations import convert_outputs_to_fp32
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from contract.arguments import TrainingArguments
from worker.trainer.precision import LossScale, autocast, precision_of


class Single:
    """What the loop needs of a strategy. Others have the same methods; the loop never asks which one it has."""

    tensor_parallel = context_parallel = sequence_parallel = 1
    """Over how many processes one batch is shared."""

    def __init__(self, args: TrainingArguments) -> None:
        self.precision = precision_of(args)
        # Accelerate wants a GPU for fp16; torch computes it anywhere, and then autocast is put around forward here.
        self._casts = self.precision == "fp16" and (args.use_cpu or not torch.cuda.is_available())
        precision = "no" if self._casts else self.precision
        _forget_other_settings(precision, use_cpu=args.use_cpu)
        # For loaders that users prepare themselves: a shuffled one then has the reference's order.
        loading = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=args.data_seed)
        self.accelerator = Accelerator(mixed_precision=precision, cpu=args.use_cpu, dataloader_config=loading)
        self.device: torch.device = self.accelerator.device
        self._moves = self.device.type != "cpu"
        self.scale: LossScale | None = None

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Autocast is put around `forward` here. Preparing the same model again would put it around twice."""
        if model in self.accelerator._models:
            optimizer = self.accelerator.prepare(optimizer)
        else:
            model, optimizer = self.accelerator.prepare(self._cast(model), optimizer)
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
        known = model in self.accelerator._models
        return model if known else self.accelerator.prepare_model(self._cast(model), evaluation_mode=True)

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

    def stepper(self, optimizer: Any) -> Any:
        """What steps: the optimizer, or the loss scale around it."""
        return self.scale or self.plain_optimizer(optimizer)

    def plain_loader(self, loader: Any) -> Any:
        """Its loader reads one batch ahead and synchronises ranks; one device needs neither."""
        return getattr(loader, "base_dataloader", loader)

    def to_device(self, value: Any) -> Any:
        return _moved(value, self.device) if self._moves else value

    def backward(self, loss: Tensor) -> None:
        if self.scale is not None:
            self.scale.backward(loss)
        else:
            loss.backward()  # type: ignore[no-untyped-call]

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        if self.scale is not None:
            return self.scale.clip(parameters, max_norm)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def forget(self, *, all_but: nn.Module) -> None:
        """Lets go of what was prepared, so that a second `train()` starts clean. This model stays prepared."""
        # What a model_init made for the runs before would fill the device.
        self.accelerator._models[:] = [each for each in self.accelerator._models if each is all_but]
        self.accelerator._optimizers.clear()
        self.accelerator._schedulers.clear()
        self.scale = None


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _moved(each, device) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(each, device) for each in value)
    return value


def _forget_other_settings(precision: str, *, use_cpu: bool) -> None:
    """Accelerate keeps its settings per process, and refuses a second Trainer that wants others."""
    state, shared = AcceleratorState._shared_state, PartialState._shared_state
    other_device = bool(shared) and shared.get("_cpu") != use_cpu
    if state and (state.get("_mixed_precision") != precision or other_device):
        AcceleratorState._reset_state(reset_partial_state=other_device)
    elif other_device:
        PartialState._reset_state()
