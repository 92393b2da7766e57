"""The DeepSpeed strategy: ZeRO shards the optimizer's state (stage 1), the gradients (2) and the parameters (3).

DeepSpeed's engine steps and clips, and the Trainer does everything else. Checkpoints are not sharded: one process
gathers and writes all parameters. Any strategy on any number of processes can continue from them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from footplate.contract.arguments import TrainingArguments
from footplate.trainer import adapters, weights
from footplate.trainer import checkpoint as files
from footplate.trainer.launcher import Place
from footplate.trainer.strategies import deepspeed_settings, sockets
from footplate.trainer.strategies.device_copy import map_tensors
from footplate.trainer.strategies.sharded import Sharded
from footplate.trainer.strategies.single import BuildArguments


class DeepSpeed(Sharded):
    def __init__(self, args: TrainingArguments, place: Place, *, build: BuildArguments = dict) -> None:
        try:
            self._library: Any = import_module("deepspeed")
        except ImportError as error:
            raise ImportError("deepspeed needs the extra of that name: pip install 'footplate[deepspeed]'") from error
        super().__init__(args, place, build=build)
        self._engine: Any = None
        self._stage = 0
        self._library.init_distributed(dist_init_required=False, verbose=False)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        if model in self._wrapped:
            raise RuntimeError(
                "DeepSpeed has sharded this model in an earlier train(), and cannot do so twice: make a new "
                "Trainer with a new model, or pass a model_init"
            )
        plain = self._only_optimizer(optimizer)
        self._share_first_weights(model)
        per_process = self.batch_size(self.args.per_device_train_batch_size)
        config = deepspeed_settings.settings(self.args, model, per_process=per_process, world=self.peers.world)
        self._stage = deepspeed_settings.stage(config)
        self._parameters = [parameter for group in plain.param_groups for parameter in group["params"]]
        self._sizes = [len(group["params"]) for group in plain.param_groups]
        self._options = [_options(group) for group in plain.param_groups]
        casts = self.precision != "no"
        exact_weights = {name: parameter.data for name, parameter in model.named_parameters()} if casts else {}
        with sockets.opening():
            self._engine, *_ = self._library.initialize(
                model=model, optimizer=plain, config=config, dist_init_required=False
            )
        self._wrapped[model] = self._engine
        self._link_round_robin()
        self._set_trained(model, exact_weights)
        return self._engine, optimizer

    def prepare_for_evaluation(self, model: nn.Module) -> nn.Module:
        return model if model in self._wrapped else model.to(self.device)

    def only_in_optimizer(self, model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
        """Returns an empty list, because the engine itself clears the gradients of its flat parameters."""
        return []

    def step_of(self, optimizer: Any) -> Callable[[], Any]:
        return self._engine.step  # type: ignore[no-any-return]

    def to_device(self, value: Any) -> Any:
        """Moves inputs to the device. Floating-point inputs get the engine's dtype, because there is no autocast."""
        value = super().to_device(value)
        if self._engine is None or self.precision == "no":
            return value
        return map_tensors(value, lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor)

    def skip_gradient_sync(self, model: nn.Module, skips: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(not skips)

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss, scale_wrt_gas=False)

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> Any:
        """Returns the gradient norm as an object that is read later, because the engine computes it in its step."""
        if self._is_plain:
            return torch.nn.utils.get_total_norm(
                [parameter.grad for parameter in parameters if parameter.grad is not None]
            )
        return _NormOfStep(self._engine)

    @property
    def _is_plain(self) -> bool:
        """True for stage 0 in single precision, in which the engine only averages gradients."""
        return self._stage == 0 and self.precision == "no"

    # Files

    def whole_weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        """Returns all weights in single precision, in which the optimizer trains them, also if forward uses bf16."""
        if self._gathered is not None:
            return self._gathered
        if model not in self._wrapped or (self._stage < 3 and self.precision == "no"):
            return None
        full_tensors = {name: parameter.detach().cpu() for name, parameter in model.state_dict().items()}
        tensor_of: dict[int, Tensor] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if id(parameter) not in tensor_of:
                tensor_of[id(parameter)] = self._whole(parameter)
            full_tensors[name] = tensor_of[id(parameter)]
        return full_tensors

    def _whole(self, parameter: nn.Parameter) -> Tensor:
        tensor: Tensor | None = self._library.utils.safe_get_full_fp32_param(parameter)
        if tensor is None:  # the parameter is frozen
            with self._library.zero.GatheredParameters([parameter]):
                tensor = parameter.detach().clone()
        return tensor.detach().cpu().view(_shape(parameter))

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Returns the optimizer's state by parameter number, as the optimizer had it before DeepSpeed flattened it."""
        plain = self.plain_optimizer(optimizer)
        if self._is_plain:
            return plain.state_dict()
        numbers = {id(parameter): at for at, parameter in enumerate(self._parameters)}
        full_state: dict[int, dict[str, Any]] = {}
        for flat, parameters in self._flats():
            self._link(parameters, flat, plain)
            for parameter in parameters:
                moments = {
                    name: self._whole_state(parameter, name, value, flat) for name, value in plain.state[flat].items()
                }
                if moments:
                    full_state[numbers[id(parameter)]] = moments
        at, groups = 0, []
        remaining_groups = iter(plain.param_groups)
        for size, options in zip(self._sizes, self._options, strict=True):
            # DeepSpeed removes groups without parameters. Adapters have no biases, so one of their groups is empty.
            is_removed = size == 0 and len(plain.param_groups) < len(self._sizes)
            group_options = options if is_removed else _options(next(remaining_groups))
            groups.append({**group_options, "params": list(range(at, at + size))})
            at += size
        return {"state": dict(sorted(full_state.items())), "param_groups": groups}

    def _whole_state(self, parameter: nn.Parameter, name: str, value: Any, flat: Tensor) -> Any:
        if not isinstance(value, Tensor) or value.shape != flat.shape:
            return value.clone() if isinstance(value, Tensor) else value
        tensor: Tensor = self._library.utils.safe_get_full_optimizer_state(parameter, name)
        return tensor.detach().cpu().view(_shape(parameter)).clone()

    def stored_optimizer(self, optimizer: Optimizer, folder: Path) -> dict[str, Any]:
        """Returns the stored state without the groups that DeepSpeed has removed, because they have no parameters."""
        stored = super().stored_optimizer(optimizer, folder)
        groups = stored["param_groups"]
        if len(groups) > len(optimizer.param_groups):
            groups = [group for group in groups if group["params"]]
        return {**stored, "param_groups": groups}

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        if self._is_plain:
            optimizer.load_state_dict(state)
            return
        numbers = {id(parameter): at for at, parameter in enumerate(self._parameters)}
        for flat, parameters in self._flats():
            stored = [(parameter, state["state"].get(numbers[id(parameter)], {})) for parameter in parameters]
            _, first_moments = next(((parameter, moments) for parameter, moments in stored if moments), (None, {}))
            optimizer.state[flat] = {
                name: torch.zeros_like(flat) if _is_moment(value) else _shared_state(value, flat, optimizer)
                for name, value in first_moments.items()
            }
            self._link(parameters, flat, optimizer)
            for parameter, moments in stored:
                for name, value in moments.items():
                    if _is_moment(value):
                        self._set_state(parameter, name, value.to(flat.device))
        for group, saved_group in zip(optimizer.param_groups, state["param_groups"], strict=True):
            group.update(_options(saved_group))

    def _link_round_robin(self) -> None:
        """Corrects DeepSpeed's links from parameters into its flat tensors if `round_robin_gradients` is set.

        DeepSpeed (0.19.8) assumes the model's order, but round robin has another order in the flat tensors. Without the
        correction, a checkpoint stores one parameter's values under another's name.
        """
        engine = self._engine.optimizer
        if self._stage in (1, 2) and engine.round_robin_gradients:
            order, engine.bit16_groups = engine.bit16_groups, engine.round_robin_bit16_groups
            engine._link_all_hp_params()
            engine.bit16_groups = order

    def _set_trained(self, model: nn.Module, exact_weights: dict[str, Tensor]) -> None:
        """Sets the optimizer's single-precision parameters to their exact values.

        DeepSpeed makes them from the rounded model, so a resumed run would differ from an uninterrupted one.
        """
        for name, parameter in model.named_parameters():
            if name in exact_weights and parameter.requires_grad:
                self._set_state(parameter, None, exact_weights[name].float())

    def _link(self, parameters: list[nn.Parameter], flat: Tensor, optimizer: Optimizer) -> None:
        """Links each parameter to its moments inside the flat tensors."""
        if self._stage < 3 and optimizer.state[flat]:
            self._library.utils.lazy_init_hp_params_optimizer_state(parameters, flat, optimizer.state)

    def _set_state(self, parameter: nn.Parameter, name: str | None, value: Tensor) -> None:
        """Sets the moment `name` of a parameter, or if `name` is None, the parameter in single precision."""
        if self._stage < 3 and name is None:
            self._library.utils.safe_set_full_fp32_param(parameter, value)
        elif self._stage < 3:
            self._library.utils.safe_set_full_optimizer_state(parameter, value, name)
        else:
            # If the size is not a multiple of the processes, the last piece is padded. DeepSpeed's own setter would
            # ignore the padding.
            piece, _ = self._engine.optimizer._get_fp32_opt_state_partition(parameter, False, optim_state_key=name)
            own_values = value.flatten()[self.peers.rank * piece.numel() : (self.peers.rank + 1) * piece.numel()]
            piece.data[: own_values.numel()].copy_(own_values)

    def _flats(self) -> list[tuple[Tensor, list[nn.Parameter]]]:
        """Returns the flat tensors that the optimizer updates, each with the parameters that it contains."""
        engine = self._engine.optimizer
        if self._stage == 3:
            return list(zip(engine.fp32_partitioned_groups_flat, engine.fp16_groups, strict=True))
        return list(zip(engine.single_partition_of_fp32_groups, engine.bit16_groups, strict=True))

    def load_weights(self, model: nn.Module, folder: Path) -> None:
        if model not in self._wrapped:
            return super().load_weights(model, folder)
        stored = adapters.read(model, folder) if files.holds_adapters_only(model, folder) else weights.read(folder)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name not in stored:
                continue
            gathers = self._stage == 3 and hasattr(tensor, "ds_id")
            with self._library.zero.GatheredParameters([tensor], modifier_rank=0, enabled=gathers):
                if not gathers or self.peers.is_main:
                    tensor.data.copy_(stored[name])
        refresh = getattr(self._engine.optimizer, "refresh_fp32_params", None)
        if refresh is not None:
            refresh()
        if self.precision != "no":
            self._set_trained(model, stored)
        return None


class _NormOfStep:
    """A number that reads the gradient norm from the engine only when it is converted to float."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __float__(self) -> float:
        return float(self._engine.get_global_grad_norm() or 0.0)


def _shape(parameter: nn.Parameter) -> torch.Size:
    """Returns the shape of the whole parameter, even if this process has only a piece."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Returns a parameter group without its parameters."""
    return {name: value for name, value in group.items() if name != "params"}


def _shared_state(value: Any, flat: Tensor, optimizer: Optimizer) -> Any:
    """Returns a copy of a value that all parameters in a flat tensor share, such as the number of steps.

    A fused or capturable optimizer reads the number of steps on the device.
    """
    if isinstance(value, Tensor) and any(
        group.get("fused") or group.get("capturable") for group in optimizer.param_groups
    ):
        return value.to(flat.device, copy=True)
    return deepcopy(value)


def _is_moment(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0
