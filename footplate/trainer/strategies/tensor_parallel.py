"""Tensor parallel: of every large matrix each process has a part, and those of a group compute one batch together.

Who cuts the model knows its layers: transformers as it loads it (`DistributedConfig(tp_size=2)`, `tp_plan="auto"`), or
a script by torch's `parallelize_module`. It comes here with parts for parameters. Beside the groups FSDP may shard what
is left, by transformers, by the script, or here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from footplate.contract.arguments import TrainingArguments
from footplate.trainer import adapters
from footplate.trainer.launcher import Place
from footplate.trainer.strategies import meshes
from footplate.trainer.strategies.fsdp import Fsdp
from footplate.trainer.strategies.fsdp_settings import FsdpSettings
from footplate.trainer.strategies.same_batch import read_alike


class TensorParallel(Fsdp):
    def __init__(self, args: TrainingArguments, place: Place, config: Any, settings: FsdpSettings) -> None:
        self.tensor_parallel, self.config = config.tp_size, config
        super().__init__(args, place, settings)
        # Accelerate takes it on GPUs only, and does nothing of it here; who reads it there finds it.
        self.accelerator.state.parallelism_config = config

    def _wrap(self, model: nn.Module) -> nn.Module:
        if model in self._wrapped:
            return model
        self._require_parts(model)
        if self._must_shard(model):
            return super()._wrap(model)
        self._place(model)
        self._wrapped[model] = model
        return model

    def _must_shard(self, model: nn.Module) -> bool:
        is_sharded = any(isinstance(each, FSDPModule) for each in model.modules())
        if is_sharded and self.args.fsdp:
            raise ValueError("the model was sharded where it was made, and fsdp would do so again: leave fsdp out")
        if self.readers.world > 1 and not is_sharded and not self.args.fsdp:
            raise ValueError(
                f"parallelism_config has dp_shard_size {self.readers.world}, and the model is not sharded: set "
                "fsdp=True, or load it with an fsdp_size in transformers' DistributedConfig"
            )
        return self.readers.world > 1 and not is_sharded

    def _require_parts(self, model: nn.Module) -> None:
        size = self.tensor_parallel
        if adapters.are_in(model):
            raise ValueError(
                f"the model has adapters, which were put beside whole matrices, and tp_size {size} cuts these: train "
                "them with DDP or FSDP"
            )
        mesh = _mesh_of(model)
        if mesh is None:
            raise ValueError(
                f"parallelism_config says tp_size {size}, and the model, a {type(model).__name__}, is whole: load it "
                f"with from_pretrained(…, distributed_config=DistributedConfig(tp_size={size})) of transformers, or "
                "cut it with torch's parallelize_module"
            )
        first = self.peers.rank // size * size
        if mesh.mesh.flatten().tolist() != list(range(first, first + size)):
            raise ValueError(
                f"the model is cut over processes {mesh.mesh.flatten().tolist()}, and with tp_size {size} those that "
                f"compute a batch together are {list(range(first, first + size))}: cut it over the mesh "
                "init_device_mesh(device, (world // tp_size, tp_size), mesh_dim_names=('dp_shard', 'tp'))['tp']"
            )

    def _shard_over(self, model: nn.Module) -> DeviceMesh:
        """FSDP wants the mesh that the parts are on to be a piece of the same whole."""
        mesh = _mesh_of(model)
        root: Any = None if mesh is None else mesh._get_root_mesh()
        for name in ("dp_shard", "dp", "fsdp"):
            if name in (getattr(root, "mesh_dim_names", None) or ()):
                return root[name]  # type: ignore[no-any-return]
        raise ValueError(
            f"parallelism_config has dp_shard_size {self.readers.world}, and the mesh that the model is cut over is no "
            "part of one with a dimension dp_shard: make one mesh, init_device_mesh(device, (world // tp_size, "
            "tp_size), mesh_dim_names=('dp_shard', 'tp')), and cut the model over its ['tp']"
        )

    def _share_first_weights(self, model: nn.Module) -> None:
        """What every process has as a whole may have been drawn at random in each."""
        with torch.no_grad():
            for each in (*model.parameters(), *model.buffers()):
                if not isinstance(each, DTensor):
                    each.data = each.data.to(self.device)
                    dist.broadcast(each.data, src=0)

    def epoch(self, epoch: Iterator[Any], loader: Any) -> Iterator[Any]:
        return read_alike(super().epoch(epoch, loader), self.peers, self.tensor_parallel)

    def stepper(self, optimizer: Any) -> Any:
        return meshes.ByMesh(self.plain_optimizer(optimizer))

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        return meshes.clip(parameters, max_norm)

    @contextmanager
    def saves_alone(self, model: nn.Module) -> Iterator[None]:
        """Transformers would wait for every process, to gather what has been gathered."""
        config: Any = getattr(model, "config", None)
        asked = getattr(config, "distributed_config", None)
        if asked is None:
            yield
            return
        config.distributed_config = None
        try:
            yield
        finally:
            config.distributed_config = asked


def _mesh_of(model: nn.Module) -> DeviceMesh | None:
    """That of tensor parallelism: the one called so, or the one there is."""
    every = [each.device_mesh for each in model.parameters() if isinstance(each, DTensor)]
    named = [mesh["tp"] for mesh in every if "tp" in (mesh.mesh_dim_names or ())]
    return next(iter(named or every), None)
