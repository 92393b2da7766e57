"""Combines several named optimizers into one optimizer for the Trainer, and their schedules into one schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from footplate.contract.errors import did_you_mean
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.named.named_optimizer import NamedOptimizer, make_schedule, maker, parameters_of
from footplate.trainer.optimizers.groups import rate_of


class _Member:
    """One named optimizer, with its parameters, its loss and the sum of its losses since the last log."""

    def __init__(self, spec: NamedOptimizer, parameters: list[nn.Parameter], model: nn.Module, max_norm: float) -> None:
        if isinstance(spec.loss, str) and hasattr(nn.Module, spec.loss):
            raise ValueError(
                f"the loss of optimizer {spec.id!r} is {spec.loss!r}, which every module has, and which is not a loss: "
                "name a key of the model's output, or a method that returns the loss"
            )
        self.spec, self.parameters, self.model = spec, parameters, model
        self.optimizer: Optimizer = maker(spec)(parameters, **spec.args)
        self.max_norm = max_norm if spec.clip is None else spec.clip
        self.loss_sum: Tensor | float = 0.0
        self.losses = 0
        self.rate: Any = rate_of(self.optimizer)
        """The learning rate of this optimizer's last step, for logs."""

    @property
    def is_main(self) -> bool:
        return self.spec.loss is None

    @property
    def method(self) -> Callable[[], Tensor] | None:
        """Returns the function that computes the loss, or None if the loss is a key of the model's output."""
        if callable(self.spec.loss):
            return partial(self.spec.loss, self.model)
        method = getattr(self.model, self.spec.loss, None) if self.spec.loss else None
        return method if callable(method) else None

    def backward(self, loss: Tensor, *, keep_graph: bool = False) -> None:
        """Computes the gradients of this optimizer's parameters only."""
        loss.backward(inputs=self.parameters, retain_graph=keep_graph)  # type: ignore[no-untyped-call]
        self.loss_sum = self.loss_sum + loss.detach()
        self.losses += 1

    def clip(self) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm or math.inf)

    def step(self) -> None:
        method = self.method
        if method is not None:
            # Drops gradients of the main loss, which a user's own backward may have added.
            self.optimizer.zero_grad()
            with torch.enable_grad():
                loss: Any = method()
                if not isinstance(loss, Tensor) or loss.numel() != 1:
                    shape = f"of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
                    raise ValueError(
                        f"{self.spec.loss!r} of {type(self.model).__name__} returned a {type(loss).__name__} {shape}, "
                        f"and the loss of optimizer {self.spec.id!r} must be one number"
                    )
                self.backward(loss)
        if not self.is_main and self.max_norm > 0:
            self.clip()
        self.rate = rate_of(self.optimizer)
        self.optimizer.step()


class NamedOptimizers(Optimizer):
    """Several optimizers as one torch optimizer, so that the loop, checkpoints and logs need not know of several."""

    def __init__(self, model: nn.Module, specs: Sequence[NamedOptimizer], max_grad_norm: float = 0.0) -> None:
        # torch's constructor is not called, because parameters, hooks and state belong to the members.
        self._members = [
            _Member(spec, parameters, model, max_grad_norm)
            for spec, parameters in zip(specs, parameters_of(model, specs), strict=True)
        ]
        if not any(member.is_main for member in self._members):
            raise ValueError("none of the optimizers has the main loss: leave out the argument loss of one of them")
        self.defaults = {}
        self._with_output_loss = [
            member for member in self._members if isinstance(member.spec.loss, str) and member.method is None
        ]
        self._output: Any = None
        self._micro_batches = 0
        self.steps = 0
        """The number of optimizer steps of the run, not of one member."""
        if self._with_output_loss:
            model.register_forward_hook(self._keep_output)

    @property
    def by_name(self) -> dict[str, Optimizer]:
        return {member.spec.id: member.optimizer for member in self._members}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for member in self._members for group in member.optimizer.param_groups]

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        return {key: value for member in self._members for key, value in member.optimizer.state.items()}

    def _keep_output(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            self._output = output

    def _due(self, members: Iterable[_Member]) -> list[_Member]:
        """Returns those of the members that make a step in the next optimizer step of the run."""
        return [member for member in members if (self.steps + 1) % member.spec.every == 0]

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients of the last forward's losses, for the optimizers that step next."""
        self._micro_batches += 1
        for member in self._due(self._with_output_loss):
            member.backward(_loss_from_output(self._output, member), keep_graph=True)
        self._output = None
        main = [parameter for member in self._due(self._members) if member.is_main for parameter in member.parameters]
        if main:
            loss.backward(inputs=main)  # type: ignore[no-untyped-call]

    def clip(self, parameters: Any = None, max_norm: float = 0.0) -> Tensor:
        """Clips the gradients of each optimizer of the main loss separately. Returns the norm of all gradients."""
        norms = [member.clip() for member in self._due(self._members) if member.is_main]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = closure() if closure is not None else None
        self._average_over_micro_batches()
        for member in self._due(self._members):
            member.step()
        self.steps += 1
        return loss

    def _average_over_micro_batches(self) -> None:
        """Averages losses of the model's output over the micro-batches, because such a loss has no item count."""
        members = self._due(self._with_output_loss)
        if members and not self._micro_batches:
            raise RuntimeError(
                f"the loss of optimizer {members[0].spec.id!r} is in the model's output, but its backward was not "
                "called: call trainer.optimizer.backward(loss) instead of loss.backward()"
            )
        if self._micro_batches > 1:
            gradients = [p.grad for member in members for p in member.parameters if p.grad is not None]
            if gradients:
                torch._foreach_div_(gradients, self._micro_batches)
        self._micro_batches = 0

    def forget_step(self) -> None:
        """Drops the gradients of the current step, for example before it is repeated after an out-of-memory error."""
        self.zero_grad()
        self._micro_batches, self._output = 0, None

    def zero_grad(self, set_to_none: bool = True) -> None:
        for member in self._members:
            member.optimizer.zero_grad(set_to_none)

    def train(self) -> None:
        self._call("train")

    def eval(self) -> None:
        self._call("eval")

    def _call(self, name: str) -> None:
        for member in self._members:
            getattr(member.optimizer, name, lambda: None)()

    def logs(self) -> dict[str, float]:
        """Returns each optimizer's learning rate, and the mean of its own loss since the last call.

        Waits for the device.
        """
        logs: dict[str, float] = {}
        for member in self._members:
            logs[f"{member.spec.id}_learning_rate"] = float(member.rate)
            if member.losses:
                logs[f"{member.spec.id}_loss"] = float(member.loss_sum) / member.losses
                member.loss_sum, member.losses = 0.0, 0
        return logs

    def make_schedule(self, num_training_steps: int) -> NamedSchedules:
        schedules = {
            member.spec.id: (member.spec, make_schedule(member.spec, member.optimizer, num_training_steps))
            for member in self._members
            if member.spec.schedule is not None
        }
        return NamedSchedules(self, schedules)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "optimizers": {member.spec.id: member.optimizer.state_dict() for member in self._members},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        ids, present = list(state_dict.get("optimizers", ())), [member.spec.id for member in self._members]
        if sorted(ids) != sorted(present):
            raise ValueError(
                f"the checkpoint has {'the optimizers ' + ', '.join(ids) if ids else 'no named optimizers'}, but "
                f"this run has {', '.join(present)}: continue with the same optimizers"
            )
        self.steps = state_dict["steps"]
        for member in self._members:
            member.optimizer.load_state_dict(state_dict["optimizers"][member.spec.id])

    def __repr__(self) -> str:
        return f"NamedOptimizers({', '.join(member.spec.id for member in self._members)})"


class NamedSchedules:
    """The schedules of several named optimizers. An optimizer without a schedule keeps its learning rate."""

    def __init__(self, optimizer: NamedOptimizers, schedules: Mapping[str, tuple[NamedOptimizer, Any]]) -> None:
        self.optimizer = optimizer
        self._all = dict(schedules)
        self._epochs = 0

    def of(self, name: str) -> Any:
        """Returns the schedule of one optimizer, or None if it has none."""
        return self._all[name][1] if name in self._all else None

    def step(self) -> None:
        """Advances the schedules of the optimizers that stepped in the last optimizer step of the run."""
        for spec, schedule in self._all.values():
            if spec.per == "step" and self.optimizer.steps % spec.every == 0:
                schedule.step()

    def begin_epoch(self, number: int) -> None:
        """Advances schedules that follow epochs to the start of epoch `number`, counted from 0."""
        for _ in range(self._epochs, number):
            for spec, schedule in self._all.values():
                if spec.per == "epoch":
                    # torch warns about a schedule that moves before a step, as happens in a resumed run.
                    schedule.optimizer._opt_called = True
                    schedule.step()
        self._epochs = max(self._epochs, number)

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {
            "epochs": self._epochs,
            "schedules": {name: schedule.state_dict() for name, (_, schedule) in self._all.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._epochs = state_dict["epochs"]
        for name, (_, schedule) in self._all.items():
            schedule.load_state_dict(state_dict["schedules"][name])


class FollowEpochs(TrainerCallback):
    """Advances schedules that follow epochs when an epoch begins. After a resume, catches up on earlier epochs."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        schedule = kwargs.get("lr_scheduler")
        if isinstance(schedule, NamedSchedules):
            # Rounded up slightly, because a sum of fractions may end just below a whole number.
            schedule.begin_epoch(int((state.epoch or 0.0) + 1e-6))


def _loss_from_output(outputs: Any, member: _Member) -> Tensor:
    key = str(member.spec.loss)
    loss: Any = outputs.get(key) if isinstance(outputs, Mapping) else getattr(outputs, key, None)
    if isinstance(loss, Tensor):
        return loss
    keys = list(map(str, outputs)) if isinstance(outputs, Mapping) else []
    own_outputs = [name for name in vars(type(member.model)) if not name.startswith("_") and name != "forward"]
    near = did_you_mean(key, [*keys, *own_outputs])
    raise ValueError(
        f"the loss of optimizer {member.spec.id!r} is {key!r}, which is neither a method of "
        f"{type(member.model).__name__} nor in its output: {', '.join(keys) or type(outputs).__name__}"
        f"{f'; {near}' if near else ''}"
    )


def all_named(optimizers: Any) -> list[NamedOptimizer]:
    """Returns the Trainer's argument `optimizers` if it is a list of NamedOptimizer, else an empty list."""
    specs = list(optimizers or ())
    return specs if all(isinstance(spec, NamedOptimizer) for spec in specs) else []


def backward_of(strategy: Any, optimizer: Any) -> Callable[[Tensor], None]:
    """Returns the `backward` of the named optimizers, or the strategy's if there is only one optimizer."""
    plain = strategy.plain_optimizer(optimizer)
    if not isinstance(plain, NamedOptimizers):
        return strategy.backward  # type: ignore[no-any-return]
    if strategy.scale is not None:
        raise ValueError(
            "fp16 scales one loss, but several named optimizers have one loss each: use bf16, which scales no loss"
        )
    return plain.backward
