"""Tensor parallelism: each process has a shard of every large matrix, and a group of processes computes one batch.

The Trainer receives a model that is already split. transformers splits it while loading
(`DistributedConfig(tp_size=2)`, `tp_plan="auto"`), or a script calls torch's `parallelize_module`. FSDP may shard the
parameters further over the groups: in transformers, in the script, or here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from footplate.contract.arguments import TrainingArguments
from footplate.trainer import adapters
from footplate.trainer.launcher import Place
from footplate.trainer.strategies.fsdp import Fsdp
from footplate.trainer.strategies.single import BuildArguments


class TensorParallel(Fsdp):
    def __init__(self, args: TrainingArguments, place: Place, config: Any, *, build: BuildArguments = dict) -> None:
        self.tensor_parallel, self.config = config.tp_size, config
        super().__init__(args, place, build=build)
        # Accelerate supports this config on GPUs only. It is stored for code that reads it from Accelerate's state.
        self.accelerator.state.parallelism_config = config

    def _make_wrapper(self, model: nn.Module) -> nn.Module:
        self._require_split(model)
        return super()._make_wrapper(model) if self._must_shard(model) else self._place(model)

    def _must_shard(self, model: nn.Module) -> bool:
        is_sharded = any(isinstance(module, FSDPModule) for module in model.modules())
        if is_sharded and self.args.fsdp:
            raise ValueError("the model is already sharded, and fsdp would shard it again: leave fsdp out")
        if self.readers.world > 1 and not is_sharded and not self.args.fsdp:
            raise ValueError(
                f"parallelism_config has dp_shard_size {self.readers.world}, but the model is not sharded: set "
                "fsdp=True, or load it with an fsdp_size in transformers' DistributedConfig"
            )
        return self.readers.world > 1 and not is_sharded

    def _require_split(self, model: nn.Module) -> None:
        size = self.tensor_parallel
        if adapters.are_in(model):
            raise ValueError(
                f"the model has adapters, which need whole weight matrices, but tp_size {size} splits them: train the "
                "adapters with DDP or FSDP"
            )
        mesh = _mesh_of(model)
        if mesh is None:
            raise ValueError(
                f"parallelism_config has tp_size {size}, but the model, a {type(model).__name__}, is whole: load it "
                f"with from_pretrained(…, distributed_config=DistributedConfig(tp_size={size})) of transformers, or "
                "split it with torch's parallelize_module"
            )
        first_rank = self.peers.rank // size * size
        if mesh.mesh.flatten().tolist() != list(range(first_rank, first_rank + size)):
            raise ValueError(
                f"the model is split over the processes {mesh.mesh.flatten().tolist()}, but with tp_size {size} the "
                f"processes {list(range(first_rank, first_rank + size))} compute a batch together: split it over the "
                "mesh init_device_mesh(device, (world // tp_size, tp_size), mesh_dim_names=('dp_shard', 'tp'))['tp']"
            )

    def _shard_over(self, model: nn.Module) -> DeviceMesh:
        """Returns the mesh of data parallelism. FSDP requires that it and the "tp" mesh belong to one root mesh."""
        mesh = _mesh_of(model)
        root: Any = None if mesh is None else mesh._get_root_mesh()
        for name in ("dp_shard", "dp", "fsdp"):
            if name in (getattr(root, "mesh_dim_names", None) or ()):
                return root[name]  # type: ignore[no-any-return]
        raise ValueError(
            f"parallelism_config has dp_shard_size {self.readers.world}, but the mesh over which the model is split is "
            "not part of one with a dimension dp_shard: make one mesh, init_device_mesh(device, (world // tp_size, "
            "tp_size), mesh_dim_names=('dp_shard', 'tp')), and split the model over its ['tp']"
        )

    def _share_first_weights(self, model: nn.Module) -> None:
        """Broadcasts tensors that are not split, because each process may have drawn them at random."""
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                if not isinstance(tensor, DTensor):
                    tensor.data = tensor.data.to(self.device)
                    dist.broadcast(tensor.data, src=0)

    def step_of(self, optimizer: Any) -> Callable[[], Any]:
        return partial(_step_by_mesh, self.plain_optimizer(optimizer))

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        """Clips the gradients by their norm over all meshes and processes."""
        meshes = _by_mesh(parameter.grad for parameter in parameters if parameter.grad is not None)
        norms = [torch.nn.utils.get_total_norm(gradients) for gradients in meshes]
        full_norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        norm = torch.linalg.vector_norm(torch.stack(full_norms)) if full_norms else torch.tensor(0.0)
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradients in meshes:
            torch._foreach_mul_(gradients, factor)
        return norm

    @contextmanager
    def local_save(self, model: nn.Module) -> Iterator[None]:
        """Removes the model's `distributed_config` for a save. With it, transformers would wait for every process."""
        config: Any = getattr(model, "config", None)
        distributed_config = getattr(config, "distributed_config", None)
        if distributed_config is None:
            yield
            return
        config.distributed_config = None
        try:
            yield
        finally:
            config.distributed_config = distributed_config


def _mesh_of(model: nn.Module) -> DeviceMesh | None:
    """Returns the mesh of tensor parallelism: the mesh named "tp", or else the first mesh of a parameter."""
    meshes = [parameter.device_mesh for parameter in model.parameters() if isinstance(parameter, DTensor)]
    tp_meshes = [mesh["tp"] for mesh in meshes if "tp" in (mesh.mesh_dim_names or ())]
    return next(iter(tp_meshes or meshes), None)


def _by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Groups tensors by device mesh, because torch's foreach operations take tensors of one mesh only."""
    meshes: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        meshes.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(meshes.values())


def _step_by_mesh(optimizer: Optimizer) -> None:
    """Steps an optimizer. During the step, each parameter group is split into one group per mesh."""
    groups = optimizer.param_groups
    split_groups = [[{**group, "params": parameters} for parameters in _by_mesh(group["params"])] for group in groups]
    optimizer.param_groups = [subgroup for subgroups in split_groups for subgroup in subgroups]
    try:
        optimizer.step()
    finally:
        optimizer.param_groups = groups
    for group, subgroups in zip(groups, split_groups, strict=True):
        # Some optimizers keep a step count in their groups. It is the same in every subgroup.
        first_group = subgroups[0] if subgroups else {}
        group.update({name: value for name, value in first_group.items() if name != "params"})
