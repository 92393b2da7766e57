"""The FSDP 2 strategy shards parameters, gradients and moments by their first dimension, and gathers layer by layer."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from footplate.contract.arguments import TrainingArguments
from footplate.contract.arguments.fsdp import SHARDED
from footplate.trainer.activations import checkpoint_activations
from footplate.trainer.launcher import Place
from footplate.trainer.strategies.fsdp_settings import FsdpSettings
from footplate.trainer.strategies.sharded import Sharded
from footplate.trainer.strategies.single import BuildArguments


class Fsdp(Sharded):
    def __init__(self, args: TrainingArguments, place: Place, *, build: BuildArguments = dict) -> None:
        self.settings = FsdpSettings.of(args)
        self.writes_shards = self.settings.state_dict_type == SHARDED
        super().__init__(args, place, build=build)
        self._whole_mesh: DeviceMesh | None = None

    def _make_wrapper(self, model: nn.Module) -> nn.Module:
        """Shards the model in place. Its parameters become DTensors and keep their names."""
        self._place(model)
        if self.settings.activation_checkpointing:
            checkpoint_activations(model)
        mesh, precision = self._shard_over(model), MixedPrecisionPolicy()
        if self.precision != "no":  # gradients are summed in single precision
            precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in [*self.settings.units(model), model]:
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=self.settings.reshard == "full_shard",
                mp_policy=precision,
                offload_policy=CPUOffloadPolicy() if self.settings.cpu_offload else OffloadPolicy(),
            )
        if callable(getattr(model, "generate", None)):
            # `generate` may call a submodule directly, so the parameters outside of all layers must be gathered first.
            register_fsdp_forward_method(model, "generate")
        return model

    def _shard_over(self, model: nn.Module) -> DeviceMesh:
        if self._whole_mesh is None:
            self._whole_mesh = init_device_mesh(self.device.type, (self.peers.world,))
        return self._whole_mesh

    def drop_gathered_weights(self, model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def skip_gradient_sync(self, model: nn.Module, skips: bool) -> None:
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(not skips)
