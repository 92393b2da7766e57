"""The FSDP 1 strategy keeps the parameters of a layer in one flat tensor, of which every process has a slice.

The optimizer of a process sees those elements of each parameter that lie in its slice, as a tensor of one dimension.
The tensor may be empty. These tensors of all ranks, joined in the order of the ranks, are the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.optim import Optimizer

from footplate.contract.arguments import TrainingArguments
from footplate.trainer import adapters
from footplate.trainer.activations import checkpoint_activations
from footplate.trainer.background_save import copied
from footplate.trainer.launcher import Place
from footplate.trainer.optimizers.adafactor import Adafactor
from footplate.trainer.strategies.fsdp_settings import FsdpSettings
from footplate.trainer.strategies.peers import gather_tensor
from footplate.trainer.strategies.sharded import Sharded
from footplate.trainer.strategies.single import BuildArguments


@dataclass(frozen=True, slots=True)
class _Sharding:
    """The shape of a parameter, and the number of its elements in each process's slice."""

    shape: torch.Size
    counts: list[int]
    """The number of the parameter's elements on each rank."""


class Fsdp1(Sharded):
    def __init__(self, args: TrainingArguments, place: Place, *, build: BuildArguments = dict) -> None:
        self.settings = FsdpSettings.of(args)
        self._shardings: dict[Tensor, _Sharding] = {}
        self._holding = ExitStack()
        super().__init__(args, place, build=build)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        plain = self.plain_optimizer(optimizer)
        if isinstance(plain, Adafactor) or hasattr(plain, "train"):
            raise ValueError(
                f"{type(plain).__name__} needs whole parameters, or swaps them for evaluation, and FSDP 1 has flat "
                "slices: leave version out of fsdp_config to use FSDP 2, or use another optim"
            )
        return super().prepare(model, optimizer)

    def _make_wrapper(self, model: nn.Module) -> nn.Module:
        """Wraps the model. The parameter objects stay, but their values move to the flat slices."""
        self._place(model)
        if self.settings.activation_checkpointing:
            checkpoint_activations(model)
        parameters = list(model.parameters())
        shapes = [parameter.shape for parameter in parameters]
        settings = self.settings
        units, prefetch = {id(unit) for unit in settings.units(model)}, settings.backward_prefetch
        # Gradients are summed in single precision.
        half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        wrapper = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy[settings.reshard.upper()],
            auto_wrap_policy=CustomPolicy(lambda module: id(module) in units),
            mixed_precision=None if self.precision == "no" else half,
            # Accelerate's CPU device is cpu:0, which FSDP would find unequal to the device of tensors on the CPU.
            device_id=self.device if self.device.type == "cuda" else torch.device("cpu"),
            use_orig_params=True,
            backward_prefetch=None if prefetch == "NO_PREFETCH" else BackwardPrefetch[prefetch],
            forward_prefetch=settings.forward_prefetch,
            limit_all_gathers=settings.limit_all_gathers,
        )
        counts = self.peers.all_gather([parameter.numel() for parameter in parameters])
        for parameter, shape, *rank_counts in zip(parameters, shapes, *counts, strict=True):
            self._shardings[parameter] = _Sharding(shape, rank_counts)
        generate: Any = getattr(model, "generate", None)
        if generate is not None:
            # The root module's own parameters are gathered while `generate` runs.
            gathered = FullyShardedDataParallel.summon_full_params(wrapper, recurse=False, writeback=False)
            vars(model)["generate"] = gathered(generate)
        return wrapper

    def skip_gradient_sync(self, model: nn.Module, skips: bool) -> None:
        self._holding.close()
        if skips and isinstance(model, FullyShardedDataParallel):
            self._holding.enter_context(model.no_sync())

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        own_norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm: Tensor = self.peers.total(own_norm.to(self.device).square()).sqrt()
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return norm

    # Files

    def whole_weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        if self._gathered is not None or model not in self._wrapped:
            return self._gathered
        with self._whole(model, writes=False):
            pieces = adapters.state_to_save(model)
            weights: dict[str, Any] = copied(pieces) if self.args.should_save else dict.fromkeys(pieces)
            return weights

    def load_weights(self, model: nn.Module, folder: Path) -> None:
        if model not in self._wrapped:
            return super().load_weights(model, folder)
        with self._whole(model, writes=True):
            return super().load_weights(model, folder)

    @contextmanager
    def _whole(self, model: nn.Module, *, writes: bool) -> Iterator[None]:
        """Restores the whole, unwrapped model on the host inside the `with` block.

        Only the main process may read the model, unless `writes` is set. On a CPU nothing is offloaded, because torch
        (2.13) would free memory that it still reads.
        """
        offloads = self.device.type != "cpu"
        with (
            FullyShardedDataParallel.summon_full_params(
                self._wrapped[model], writeback=writes, offload_to_cpu=offloads, rank0_only=offloads and not writes
            ),
            self.original_names(model),
        ):
            yield

    def elements(self, parameter: nn.Parameter) -> int:
        sharding = self._shardings.get(parameter)
        return parameter.numel() if sharding is None else sharding.shape.numel()

    def total_elements(self, elements: int) -> int:
        return int(self.peers.total(elements))

    @contextmanager
    def original_names(self, model: nn.Module) -> Iterator[None]:
        """Removes the FSDP wrappers inside the `with` block, because parameter names contain the wrappers' names."""
        wrappers = [
            (module, name, child)
            for module in model.modules()
            for name, child in module.named_children()
            if isinstance(child, FullyShardedDataParallel)
        ]
        for module, name, wrapper in wrappers:
            setattr(module, name, wrapper.module)
        try:
            yield
        finally:
            for module, name, wrapper in wrappers:
                setattr(module, name, wrapper)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Returns the optimizer's unsharded state.

        A rank has no state of parameters outside of its slice, so the ranks first exchange names and dtypes.
        """
        state = self.plain_optimizer(optimizer).state_dict()
        own_state: dict[int, dict[str, Any]] = state["state"]
        known_state: dict[int, dict[str, Any]] = {}
        for rank_state in self.peers.all_gather({at: _described(values) for at, values in own_state.items()}):
            known_state = rank_state | known_state
        numbered = [
            parameter for group in self.plain_optimizer(optimizer).param_groups for parameter in group["params"]
        ]
        full_state: dict[int, dict[str, Any]] = {}
        for at in sorted(known_state):
            full_state[at] = {
                name: self._gathered_moment(numbered[at], own_state.get(at, {}).get(name), value)
                if isinstance(value, torch.dtype)
                else value
                for name, value in known_state[at].items()
            }
        return {"state": full_state, "param_groups": state["param_groups"]}

    def _gathered_moment(self, parameter: nn.Parameter, own_piece: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        sharding = self._shardings[parameter]
        piece = torch.empty(0, dtype=dtype, device=self.device) if own_piece is None else own_piece
        if piece.shape != (sharding.counts[self.peers.rank],):
            raise ValueError(
                f"the optimizer keeps a tensor of {tuple(piece.shape)} for {sharding.counts[self.peers.rank]} elements "
                "of a parameter, and FSDP 1 can save only state with one value per element: leave version out of "
                "fsdp_config"
            )
        pieces = gather_tensor(piece, [(count,) for count in sharding.counts], self.peers)
        return torch.cat(pieces).view(sharding.shape).cpu() if self.args.should_save else None

    def _piece(self, tensor: Any, parameter: Tensor) -> Any:
        sharding = self._shardings.get(parameter)
        if sharding is None or not isinstance(tensor, Tensor) or tensor.shape != sharding.shape or not tensor.dim():
            return tensor
        return torch.split(tensor.flatten(), sharding.counts)[self.peers.rank].clone()


def _described(values: dict[str, Any]) -> dict[str, Any]:
    """Replaces each moment of an optimizer's state by its dtype. Other tensors move to the host."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return values | {name: value.dtype if value.dim() else value.cpu() for name, value in tensors.items()}
