"""FSDP 1: the parameters of a layer lie behind each other in one flat tensor, of which every process has a slice.

The optimizer sees each parameter's part of this process's slice, in one dimension and maybe empty. Put behind each
other in the order of the processes, the parts are the parameter again: that is all that checkpoints here need to know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
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
from footplate.trainer.background import copied
from footplate.trainer.launcher import Place
from footplate.trainer.optimizers.adafactor import Adafactor
from footplate.trainer.strategies.fsdp_settings import FsdpSettings
from footplate.trainer.strategies.gather import leaf_of_each
from footplate.trainer.strategies.sharded import Sharded


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a parameter lies in the processes' slices."""

    shape: torch.Size
    counts: list[int]
    """Of its elements, in each process."""


class Fsdp1(Sharded):
    def __init__(self, args: TrainingArguments, place: Place, settings: FsdpSettings) -> None:
        self.settings = settings
        self._cuts: dict[nn.Parameter, _Cut] = {}
        self._holding = ExitStack()
        super().__init__(args, place)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        plain = self.plain_optimizer(optimizer)
        if isinstance(plain, Adafactor) or hasattr(plain, "train"):
            raise ValueError(
                f"{type(plain).__name__} looks at a parameter as a whole, or swaps it in evaluation, and FSDP 1 has "
                "flat slices of several: leave version out of fsdp_config, or use another optim"
            )
        return super().prepare(model, optimizer)

    def _wrap(self, model: nn.Module) -> nn.Module:
        """The parameters stay the objects that they are, and lose to the slices what they hold."""
        if model in self._wrapped:
            return self._wrapped[model]
        self._place(model)
        if self.settings.activation_checkpointing:
            checkpoint_activations(model)
        parameters = list(model.parameters())
        shapes = [each.shape for each in parameters]
        units = {id(each) for each in self.settings.units(model)}
        whole = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy[self.settings.reshard.upper()],
            auto_wrap_policy=CustomPolicy(lambda module: id(module) in units),
            mixed_precision=self._precision(),
            device_id=self.device if self.device.type == "cuda" else torch.device("cpu"),  # which has no number there
            use_orig_params=True,
            **self._prefetches(),
        )
        counts = self.peers.everyone([each.numel() for each in parameters])
        for each, shape, *of_each in zip(parameters, shapes, *counts, strict=True):
            self._cuts[each] = _Cut(shape, of_each)
        generate: Any = getattr(model, "generate", None)
        if generate is not None:
            vars(model)["generate"] = _with_its_own_parameters(whole, generate)
        self._wrapped[model] = whole
        return whole

    def _prefetches(self) -> dict[str, Any]:
        settings = self.settings
        said = settings.backward_prefetch
        return {
            "backward_prefetch": None if said == "NO_PREFETCH" else BackwardPrefetch[said],
            "forward_prefetch": settings.forward_prefetch,
            "limit_all_gathers": settings.limit_all_gathers,
        }

    def _precision(self) -> MixedPrecision | None:
        """Gathered and computed in half the bits, summed up in all of them."""
        if self.precision == "no":
            return None
        return MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def hold_back(self, model: nn.Module, holds: bool) -> None:
        self._holding.close()
        if holds and isinstance(model, FullyShardedDataParallel):
            self._holding.enter_context(model.no_sync())

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        here = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
        norm: Tensor = self.peers.total(here.to(self.device).square()).sqrt()
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return norm

    # Files

    def whole_weights(self, model: nn.Module, *, _internal_call: bool = False) -> dict[str, Tensor] | None:
        if self._gathered is not None or model not in self._wrapped:
            return self._gathered
        with self._whole(model, writes=False):
            own = adapters.to_copy(model)
            found: dict[str, Any] = copied(own) if self.args.should_save else dict.fromkeys(own)
            return found

    def load_weights(self, model: nn.Module, folder: Path) -> None:
        if model not in self._wrapped:
            return super().load_weights(model, folder)
        with self._whole(model, writes=True):
            return super().load_weights(model, folder)

    @contextmanager
    def _whole(self, model: nn.Module, *, writes: bool) -> Iterator[None]:
        """The model as it was made, for a while: on the host, and to be read in the main process only.

        On a CPU nothing is offloaded: torch (2.13) would let go of the memory that it then goes on to read.
        """
        goes = self.device.type != "cpu"
        with (
            FullyShardedDataParallel.summon_full_params(
                self._wrapped[model], writeback=writes, offload_to_cpu=goes, rank0_only=goes and not writes
            ),
            self.named(model),
        ):
            yield

    def elements(self, parameter: nn.Parameter) -> int:
        cut = self._cuts.get(parameter)
        return parameter.numel() if cut is None else cut.shape.numel()

    def in_all(self, elements: int) -> int:
        return int(self.peers.total(elements))

    @contextmanager
    def named(self, model: nn.Module) -> Iterator[None]:
        """Without the hulls around layers, which are part of every name below them."""
        hulls = [
            (module, name, child)
            for module in model.modules()
            for name, child in module.named_children()
            if isinstance(child, FullyShardedDataParallel)
        ]
        for module, name, hull in hulls:
            setattr(module, name, hull.module)
        try:
            yield
        finally:
            for module, name, hull in hulls:
                setattr(module, name, hull)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """A process has no state of what it has no part of: what there is is told by all, then gathered by all."""
        state = self.plain_optimizer(optimizer).state_dict()
        here: dict[int, dict[str, Any]] = state["state"]
        told: dict[int, dict[str, Any]] = {}
        for one in self.peers.everyone({at: _described(values) for at, values in here.items()}):
            told = one | told
        numbered = [each for group in self.plain_optimizer(optimizer).param_groups for each in group["params"]]
        whole: dict[int, dict[str, Any]] = {}
        for at in sorted(told):
            whole[at] = {
                name: self._gathered_moment(numbered[at], here.get(at, {}).get(name), value)
                if isinstance(value, torch.dtype)
                else value
                for name, value in told[at].items()
            }
        return {"state": whole, "param_groups": state["param_groups"]}

    def _gathered_moment(self, parameter: nn.Parameter, here: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        cut = self._cuts[parameter]
        part = torch.empty(0, dtype=dtype, device=self.device) if here is None else here
        if part.shape != (cut.counts[self.peers.rank],):
            raise ValueError(
                f"the optimizer keeps a tensor of {tuple(part.shape)} for a part of {cut.counts[self.peers.rank]} "
                "elements, and FSDP 1's checkpoints hold what is element by element: leave version out of fsdp_config"
            )
        parts = leaf_of_each(part, [(count,) for count in cut.counts], self.peers)
        return torch.cat(parts).view(cut.shape).cpu() if self.args.should_save else None

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        numbered = [each for group in optimizer.param_groups for each in group["params"]]
        parts = {
            at: {name: self._part(value, numbered[at]) for name, value in values.items()}
            for at, values in state["state"].items()
        }
        optimizer.load_state_dict({"state": parts, "param_groups": state["param_groups"]})

    def _part(self, value: Any, parameter: nn.Parameter) -> Any:
        cut = self._cuts.get(parameter)
        if cut is None or not isinstance(value, Tensor) or value.shape != cut.shape or not value.dim():
            return value
        return torch.split(value.flatten(), cut.counts)[self.peers.rank].clone()


def _described(values: dict[str, Any]) -> dict[str, Any]:
    """Of a moment its kind of number, of all else what it is: from the host, for a pickle knows of its own GPU only."""
    return {name: _told(each) if isinstance(each, Tensor) else each for name, each in values.items()}


def _told(value: Tensor) -> Any:
    return value.dtype if value.dim() else value.cpu()


def _with_its_own_parameters(whole: FullyShardedDataParallel, method: Callable[..., Any]) -> Callable[..., Any]:
    """`generate` calls the parts of a model, and what is in no layer comes only with a call of the whole."""

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        with FullyShardedDataParallel.summon_full_params(whole, recurse=False, writeback=False):
            return method(*args, **kwargs)

    return called
