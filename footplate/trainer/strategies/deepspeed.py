"""DeepSpeed's ZeRO: stage 1 shares out the optimizer's state, 2 the gradients too, 3 the parameters as well.

Its engine steps and clips; everything else is the Trainer's. Checkpoints are whole, in the files that one process
writes: gathered parameter by parameter, so that any strategy on any number of processes continues them.
"""

from __future__ import annotations

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
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.strategies import deepspeed_settings, sockets
from footplate.trainer.strategies.device_copy import in_type
from footplate.trainer.strategies.sharded import Sharded


class DeepSpeed(Sharded):
    def __init__(self, args: TrainingArguments, place: Place) -> None:
        self._library = _library()
        super().__init__(args, place)
        self._engine: Any = None
        self._stage = 0
        self._library.init_distributed(dist_init_required=False, verbose=False)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        if model in self._wrapped:
            raise RuntimeError(
                "DeepSpeed has taken this model apart in an earlier train(), and cannot do so twice: make a new "
                "Trainer with a new model, or hand in a model_init"
            )
        plain = self.plain_optimizer(optimizer)
        if isinstance(plain, NamedOptimizers):
            raise ValueError("several named optimizers step one by one, and DeepSpeed's engine steps all: use DDP")
        self._share_first_weights(model)
        per_process = self.batch_size(self.args.per_device_train_batch_size)
        config = deepspeed_settings.settings(self.args, model, per_process=per_process, world=self.peers.world)
        self._stage = deepspeed_settings.stage(config)
        self._parameters = [each for group in plain.param_groups for each in group["params"]]
        self._sizes = [len(group["params"]) for group in plain.param_groups]
        whole = {} if self.precision == "no" else {name: each.data for name, each in model.named_parameters()}
        with sockets.opening():
            self._engine, *_ = self._library.initialize(
                model=model, optimizer=plain, config=config, dist_init_required=False
            )
        self._wrapped[model] = self._engine
        self._link_round_robin()
        self._set_trained(model, whole)
        return self._engine, optimizer

    def prepare_for_evaluation(self, model: nn.Module) -> nn.Module:
        return model if model in self._wrapped else model.to(self.device)

    def held_by_optimizer(self, model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
        """None: the engine clears the gradients of its flat parameters, or keeps their memory if it offloads them."""
        return []

    def stepper(self, optimizer: Any) -> Any:
        return self._engine

    def to_device(self, value: Any) -> Any:
        """Floating-point inputs get the type of the engine's weights, because nothing puts autocast around forward."""
        value = super().to_device(value)
        if self._engine is None or self.precision == "no":
            return value
        return in_type(value, torch.bfloat16)

    def hold_back(self, model: nn.Module, holds: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(not holds)

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss, scale_wrt_gas=False)

    def clip(self, parameters: list[nn.Parameter], max_norm: float) -> Any:
        """The engine clips as it steps, and knows the norm then: who reads it reads it later."""
        if self._is_plain:
            return torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
        return _NormOfStep(self._engine)

    @property
    def _is_plain(self) -> bool:
        """Stage 0 in single precision: the engine averages gradients, and the optimizer is as it was made."""
        return self._stage == 0 and self.precision == "no"

    # Files

    def whole_weights(self, model: nn.Module, *, _internal_call: bool = False) -> dict[str, Tensor] | None:
        """In single precision, as they are trained, whatever is computed with."""
        if self._gathered is not None:
            return self._gathered
        if model not in self._wrapped or (self._stage < 3 and self.precision == "no"):
            return None
        whole = {name: each.detach().cpu() for name, each in model.state_dict().items()}
        known: dict[int, Tensor] = {}
        for name, each in model.named_parameters(remove_duplicate=False):
            if id(each) not in known:
                known[id(each)] = self._whole(each)
            whole[name] = known[id(each)]
        return whole

    def _whole(self, parameter: nn.Parameter) -> Tensor:
        found: Tensor | None = self._library.utils.safe_get_full_fp32_param(parameter)
        if found is None:  # not trained
            with self._library.zero.GatheredParameters([parameter]):
                found = parameter.detach().clone()
        return found.detach().cpu().view(_shape(parameter))

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """As of the optimizer before it was taken apart: by parameter number."""
        plain = self.plain_optimizer(optimizer)
        if self._is_plain:
            return plain.state_dict()
        numbers = {id(each): at for at, each in enumerate(self._parameters)}
        whole: dict[int, dict[str, Any]] = {}
        for flat, parameters in self._flats():
            self._link(parameters, flat, plain)
            for each in parameters:
                found = {name: self._whole_state(each, name, value, flat) for name, value in plain.state[flat].items()}
                if found:
                    whole[numbers[id(each)]] = found
        at, groups = 0, []
        for group, size in zip(plain.param_groups, self._sizes, strict=True):
            options = {name: value for name, value in group.items() if name != "params"}
            groups.append({**options, "params": list(range(at, at + size))})
            at += size
        return {"state": dict(sorted(whole.items())), "param_groups": groups}

    def _whole_state(self, parameter: nn.Parameter, name: str, value: Any, flat: Tensor) -> Any:
        if not isinstance(value, Tensor) or value.shape != flat.shape:
            return value.clone() if isinstance(value, Tensor) else value
        found: Tensor = self._library.utils.safe_get_full_optimizer_state(parameter, name)
        return found.detach().cpu().view(_shape(parameter)).clone()

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        if self._is_plain:
            optimizer.load_state_dict(state)
            return
        numbers = {id(each): at for at, each in enumerate(self._parameters)}
        for flat, parameters in self._flats():
            stored = [(each, state["state"].get(numbers[id(each)], {})) for each in parameters]
            _, first = next(((each, found) for each, found in stored if found), (None, {}))
            optimizer.state[flat] = {
                name: torch.zeros_like(flat) if _is_moment(value) else _copied(value) for name, value in first.items()
            }
            self._link(parameters, flat, optimizer)
            for each, found in stored:
                for name, value in found.items():
                    if _is_moment(value):
                        self._set_state(each, name, value.to(flat.device))
        for group, kept in zip(optimizer.param_groups, state["param_groups"], strict=True):
            group.update({name: value for name, value in kept.items() if name != "params"})

    def _link_round_robin(self) -> None:
        """DeepSpeed (0.19.8) looks for a parameter's flat part in the model's order, and round_robin_gradients has laid
        the parts out in another: checkpoints would hold one parameter's numbers under another's name."""
        engine = self._engine.optimizer
        if self._stage in (1, 2) and engine.round_robin_gradients:
            order, engine.bit16_groups = engine.bit16_groups, engine.round_robin_bit16_groups
            engine._link_all_hp_params()
            engine.bit16_groups = order

    def _set_trained(self, model: nn.Module, whole: dict[str, Tensor]) -> None:
        """Gives the parameters that the optimizer steps their values in single precision. DeepSpeed makes them from the
        model after it has rounded that: a resumed run would be another one."""
        for name, each in model.named_parameters():
            if name in whole and each.requires_grad:
                self._set_state(each, None, whole[name].float())

    def _link(self, parameters: list[nn.Parameter], flat: Tensor, optimizer: Optimizer) -> None:
        """Of each parameter, where its moments are in the flat ones."""
        if self._stage < 3 and optimizer.state[flat]:
            self._library.utils.lazy_init_hp_params_optimizer_state(parameters, flat, optimizer.state)

    def _set_state(self, parameter: nn.Parameter, name: str | None, value: Tensor) -> None:
        """Sets a moment of a parameter, or the parameter in single precision if no name is given."""
        if self._stage < 3 and name is None:
            self._library.utils.safe_set_full_fp32_param(parameter, value)
        elif self._stage < 3:
            self._library.utils.safe_set_full_optimizer_state(parameter, value, name)
        else:
            # DeepSpeed's own setter forgets that the last piece is filled up where processes do not divide the size.
            piece, _ = self._engine.optimizer._get_fp32_opt_state_partition(parameter, False, optim_state_key=name)
            own = value.flatten()[self.peers.rank * piece.numel() : (self.peers.rank + 1) * piece.numel()]
            piece.data[: own.numel()].copy_(own)

    def _flats(self) -> list[tuple[Tensor, list[nn.Parameter]]]:
        """What the optimizer steps, each a part of several parameters, and which these are."""
        engine = self._engine.optimizer
        if self._stage == 3:
            return list(zip(engine.fp32_partitioned_groups_flat, engine.fp16_groups, strict=True))
        return list(zip(engine.single_partition_of_fp32_groups, engine.bit16_groups, strict=True))

    def load_weights(self, model: nn.Module, folder: Path) -> None:
        if model not in self._wrapped:
            return super().load_weights(model, folder)
        stored = adapters.read(model, folder) if files.holds_adapters_only(model, folder) else weights.read(folder)
        for name, each in [*model.named_parameters(), *model.named_buffers()]:
            if name not in stored:
                continue
            gathers = self._stage == 3 and hasattr(each, "ds_id")
            with self._library.zero.GatheredParameters([each], modifier_rank=0, enabled=gathers):
                if not gathers or self.peers.is_main:
                    each.data.copy_(stored[name])
        refresh = getattr(self._engine.optimizer, "refresh_fp32_params", None)
        if refresh is not None:
            refresh()
        if self.precision != "no":
            self._set_trained(model, stored)
        return None


class _NormOfStep:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __float__(self) -> float:
        return float(self._engine.get_global_grad_norm() or 0.0)


def _library() -> Any:
    try:
        return import_module("deepspeed")
    except ImportError as error:
        raise ImportError("deepspeed needs the extra of that name: pip install 'footplate[deepspeed]'") from error


def _shape(parameter: nn.Parameter) -> torch.Size:
    """Also of one of which only a piece is here."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def _is_moment(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
