"""The base of the strategies that shard the model over processes. It saves and loads whole and sharded checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from footplate.trainer import adapters
from footplate.trainer import checkpoint as files
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.strategies import shards, shared_folder
from footplate.trainer.strategies.ddp import Ddp

T = TypeVar("T")


class Sharded(Ddp):
    holds_whole = False
    _gathered: dict[str, Tensor] | None = None

    def place(self, model: nn.Module) -> nn.Module:
        """Leaves the model on the host, because the whole model may not fit on the device."""
        return model

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Wraps the model, and replaces the optimizer's whole parameters by their shards."""
        plain = self._only_optimizer(optimizer)
        with self.original_names(model):
            adapters.require_places(model, type(self).__name__)
            names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
        first_state = plain.state_dict() if plain.state else None  # Adagrad has a state before its first step
        wrapped = self._wrap(model)
        with self.original_names(model):
            pieces = dict(model.named_parameters(remove_duplicate=False))
        for group in plain.param_groups:
            group["params"] = [
                pieces[names[id(parameter)]] if id(parameter) in names else parameter for parameter in group["params"]
            ]
        if first_state is not None:
            plain.state.clear()
            self.load_optimizer(plain, first_state)
        return wrapped, self.accelerator.prepare(optimizer)

    def _only_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Returns torch's optimizer. Raises ValueError for several named optimizers."""
        plain = self.plain_optimizer(optimizer)
        if isinstance(plain, NamedOptimizers):
            raise ValueError(
                f"several named optimizers do not work with {type(self).__name__}, which shards parameters over "
                "processes: use DDP, or one optimizer"
            )
        return plain

    def prepare_for_evaluation(self, model: nn.Module) -> nn.Module:
        return self._wrap(model)

    def _place(self, model: nn.Module) -> nn.Module:
        """Copies the main process's weights to all processes, and wraps forward in autocast. The model is not moved."""
        self._share_first_weights(model)
        placed: nn.Module = self.accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)
        return self.fp32_outputs.replace_conversion(placed)

    def _share_first_weights(self, model: nn.Module) -> None:
        with torch.no_grad():
            sums = tuple(float(tensor.double().sum()) for tensor in model.state_dict().values() if tensor.numel())
        if len(set(self.peers.all_gather(sums))) > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0, group=self.peers.group_of(tensor))

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        norm = super().clip(parameters, max_norm)
        full_norm: Tensor = norm.full_tensor() if isinstance(norm, DTensor) else norm
        return full_norm

    # Files

    def whole_weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        """Gathers the unsharded weights in the main process. All processes must call this method.

        For a model with adapters, only the trained weights are returned.
        """
        if self._gathered is not None:
            return self._gathered
        return gathered(adapters.state_to_save(model), keep=self.args.should_save)

    @contextmanager
    def keep_whole_weights(self, model: nn.Module) -> Iterator[None]:
        self._gathered = self.whole_weights(model)
        try:
            yield
        finally:
            self._gathered = None

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        state = self.plain_optimizer(optimizer).state_dict()
        if self.writes_shards:
            return state
        keep = self.args.should_save
        full_state = {at: gathered(values, keep=keep) for at, values in state["state"].items()}
        return {"state": full_state, "param_groups": state["param_groups"]}

    def load_weights(self, model: nn.Module, folder: Path) -> None:
        if files.is_sharded(folder) or not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
            return super().load_weights(model, folder)
        full_weights = files.read_weights(model, folder)
        for name, piece in model.state_dict().items():
            if name in full_weights:
                piece.copy_(self._piece(full_weights[name], piece))
        return None

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Shards each moment like its parameter, and loads the state."""
        numbered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        pieces = {
            at: {name: self._piece(value, numbered[at]) for name, value in values.items()}
            for at, values in state["state"].items()
        }
        optimizer.load_state_dict({"state": pieces, "param_groups": state["param_groups"]})

    def _piece(self, tensor: Any, parameter: Tensor) -> Any:
        """Returns this process's part of an unsharded tensor of this parameter. Scalars do not change."""
        is_plain = isinstance(tensor, Tensor) and not isinstance(tensor, DTensor) and tensor.dim()
        if not is_plain or not isinstance(parameter, DTensor):
            return tensor
        placements = shards.placements_of(tensor.shape, parameter)
        return distribute_tensor(tensor.to(parameter.device), parameter.device_mesh, placements, src_data_rank=None)

    def save_shards(self, commit: Callable[[Callable[[Path], None]], T], pieces: Callable[[Path], None]) -> T:
        return shared_folder.fill_and_commit(self.peers, commit, pieces, Path(self.args.output_dir or "."))


def gathered(tensors: dict[str, Any], *, keep: bool) -> dict[str, Any]:
    """Gathers sharded tensors on the host, or takes part without keeping them. Tied tensors become one tensor."""
    full_tensors: dict[str, Any] = {}
    names_by_place: dict[tuple[Any, ...], str] = {}
    for name, value in tensors.items():
        if not isinstance(value, DTensor):
            full_tensors[name] = (value.detach().cpu() if keep else None) if isinstance(value, Tensor) else value
            continue
        local = value.to_local()
        place = (local.device, local.data_ptr(), value.shape)
        if local.numel() and place in names_by_place:
            full_tensors[name] = full_tensors[names_by_place[place]]
            continue
        names_by_place[place] = name
        full_tensor = value.full_tensor().detach()
        full_tensors[name] = full_tensor.cpu() if keep else None
    return full_tensors
