"""Several optimizers as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from footplate.contract.errors import did_you_mean
from footplate.trainer.named.schedules import NamedSchedules
from footplate.trainer.named.spec import NamedOptimizer, make_schedule, maker, parted


class _One:
    """One optimizer at work."""

    def __init__(self, spec: NamedOptimizer, parameters: list[nn.Parameter], model: nn.Module, max_norm: float) -> None:
        if isinstance(spec.loss, str) and hasattr(nn.Module, spec.loss):
            raise ValueError(
                f"the loss of optimizer {spec.id!r} is {spec.loss!r}, which every module has: it is no loss"
            )
        self.spec, self.parameters, self.model = spec, parameters, model
        self.optimizer: Optimizer = maker(spec)(parameters, **spec.args)
        self.max_norm = max_norm if spec.clip is None else spec.clip
        self.loss_sum: Tensor | float = 0.0
        self.losses = 0
        self.rate: Any = self.optimizer.param_groups[0]["lr"]
        """The one its last step was made with."""

    @property
    def is_main(self) -> bool:
        return self.spec.loss is None

    @property
    def method(self) -> Callable[[], Tensor] | None:
        """Its loss, where that is no part of the model's output."""
        if callable(self.spec.loss):
            return partial(self.spec.loss, self.model)
        found = getattr(self.model, self.spec.loss, None) if self.spec.loss else None
        return found if callable(found) else None

    def send(self, loss: Tensor, *, keep_graph: bool = False) -> None:
        """To its own parameters, and to no others."""
        loss.backward(inputs=self.parameters, retain_graph=keep_graph)  # type: ignore[no-untyped-call]
        self.loss_sum = self.loss_sum + loss.detach()
        self.losses += 1

    def _one_number(self, loss: Any) -> Tensor:
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return loss
        shape = f"of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise ValueError(
            f"{self.spec.loss!r} of {type(self.model).__name__} returned a {type(loss).__name__} {shape}, and the loss "
            f"of optimizer {self.spec.id!r} is one number"
        )

    def clip(self) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm or math.inf)

    def step(self) -> None:
        method = self.method
        if method is not None:
            # Somebody's own backward may have sent the main loss here too.
            self.optimizer.zero_grad()
            with torch.enable_grad():
                self.send(self._one_number(method()))
        if not self.is_main and self.max_norm > 0:
            self.clip()
        self.rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()


class NamedOptimizers(Optimizer):
    """All of them as one: what the loop steps, a checkpoint holds, and a log reads the rate of."""

    def __init__(self, model: nn.Module, specs: Sequence[NamedOptimizer], max_grad_norm: float = 0.0) -> None:
        # Not torch's own constructor: parameters, hooks and state are the parts'.
        parts = zip(specs, parted(model, specs), strict=True)
        self._all = [_One(spec, parameters, model, max_grad_norm) for spec, parameters in parts]
        if not any(each.is_main for each in self._all):
            raise ValueError("none of the optimizers has the main loss: leave the loss of one of them out")
        self.defaults = {}
        self._of_output = [each for each in self._all if isinstance(each.spec.loss, str) and each.method is None]
        self._output: Any = None
        self._micro_batches = 0
        self._steps = 0
        if self._of_output:
            model.register_forward_hook(self._keep_output)

    @classmethod
    def factory(cls, specs: Sequence[NamedOptimizer], max_grad_norm: float) -> Callable[[], Callable[..., Any]]:
        """What the Trainer takes in the place of an optimizer's class: made, and then called with the model."""
        return lambda: lambda model: cls(model, specs, max_grad_norm)

    @property
    def by_name(self) -> dict[str, Optimizer]:
        return {each.spec.id: each.optimizer for each in self._all}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for each in self._all for group in each.optimizer.param_groups]

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        return {key: value for each in self._all for key, value in each.optimizer.state.items()}

    def _keep_output(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            self._output = output

    def _due(self, among: Iterable[_One] | None = None) -> list[_One]:
        among = self._all if among is None else among
        return [each for each in among if (self._steps + 1) % each.spec.every == 0]

    def backward(self, loss: Tensor) -> None:
        """Sends the losses of the last forward to the parameters whose optimizers step next."""
        self._micro_batches += 1
        for each in self._due(self._of_output):
            each.send(_of_output(self._output, each), keep_graph=True)
        self._output = None
        main = [parameter for each in self._due() if each.is_main for parameter in each.parameters]
        if main:
            loss.backward(inputs=main)  # type: ignore[no-untyped-call]

    def clip(self, parameters: Any = None, max_norm: float = 0.0) -> Tensor:
        """Each main optimizer's gradients by its own norm; the others' come later. Returns the norm of all of these."""
        norms = [each.clip() for each in self._due() if each.is_main]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = closure() if closure is not None else None
        self._average_over_micro_batches()
        for each in self._due():
            each.step()
        self._steps += 1
        return loss

    def _average_over_micro_batches(self) -> None:
        """Losses of the output are means that nobody could scale: there is no count to them."""
        due = self._due(self._of_output)
        if due and not self._micro_batches:
            raise RuntimeError(
                f"the loss of optimizer {due[0].spec.id!r} is in the model's output, and nobody sent it back: "
                "call trainer.optimizer.backward(loss) in place of loss.backward()"
            )
        if self._micro_batches > 1:
            gradients = [p.grad for each in due for p in each.parameters if p.grad is not None]
            if gradients:
                torch._foreach_div_(gradients, self._micro_batches)
        self._micro_batches = 0

    def forget_step(self) -> None:
        """The step at hand begins again: what was sent back so far does not count."""
        self.zero_grad()
        self._micro_batches, self._output = 0, None

    def zero_grad(self, set_to_none: bool = True) -> None:
        for each in self._all:
            each.optimizer.zero_grad(set_to_none)

    def train(self) -> None:
        self._tell("train")

    def eval(self) -> None:
        self._tell("eval")

    def _tell(self, what: str) -> None:
        for each in self._all:
            getattr(each.optimizer, what, lambda: None)()

    def logs(self) -> dict[str, float]:
        """Rates by id, and the mean since the last reading of each loss that is not the main one. Reads the device."""
        found: dict[str, float] = {}
        for each in self._all:
            found[f"{each.spec.id}_learning_rate"] = float(each.rate)
            if each.losses:
                found[f"{each.spec.id}_loss"] = float(each.loss_sum) / each.losses
                each.loss_sum, each.losses = 0.0, 0
        return found

    def make_schedule(self, num_training_steps: int) -> NamedSchedules:
        specs = {each.spec.id: each for each in self._all if each.spec.schedule is not None}
        made = {
            name: (each.spec, make_schedule(each.spec, each.optimizer, num_training_steps))
            for name, each in specs.items()
        }
        return NamedSchedules(self, made)

    @property
    def steps(self) -> int:
        """Of the run, not of any one of them."""
        return self._steps

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "optimizers": {each.spec.id: each.optimizer.state_dict() for each in self._all}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        saved, ours = list(state_dict.get("optimizers", ())), [each.spec.id for each in self._all]
        if sorted(saved) != sorted(ours):
            raise ValueError(
                f"the checkpoint has the optimizers {', '.join(saved) or 'of another kind'}, and this run has "
                f"{', '.join(ours)}: continue with the same"
            )
        self._steps = state_dict["steps"]
        for each in self._all:
            each.optimizer.load_state_dict(state_dict["optimizers"][each.spec.id])

    def __repr__(self) -> str:
        return f"NamedOptimizers({', '.join(each.spec.id for each in self._all)})"


def _of_output(outputs: Any, one: _One) -> Tensor:
    key = str(one.spec.loss)
    found: Any = outputs.get(key) if isinstance(outputs, Mapping) else getattr(outputs, key, None)
    if isinstance(found, Tensor):
        return found
    keys = list(map(str, outputs)) if isinstance(outputs, Mapping) else []
    own = [name for name in vars(type(one.model)) if not name.startswith("_") and name != "forward"]
    near = did_you_mean(key, [*keys, *own])
    raise ValueError(
        f"the loss of optimizer {one.spec.id!r} is {key!r}, which is neither a method of {type(one.model).__name__} "
        f"nor in what it returned: {', '.join(keys) or type(outputs).__name__}{f'; {near}' if near else ''}"
    )


def all_named(optimizers: Any) -> list[NamedOptimizer] | None:
    """The list of several, told from a pair of optimizer and schedule."""
    found = list(optimizers or ())
    return found if found and all(isinstance(each, NamedOptimizer) for each in found) else None


def backward_of(strategy: Any, optimizer: Any) -> Callable[[Tensor], None]:
    """How a loss is sent back: named optimizers part it, the strategy sends it everywhere."""
    plain = strategy.plain_optimizer(optimizer)
    if not isinstance(plain, NamedOptimizers):
        return strategy.backward  # type: ignore[no-any-return]
    if strategy.scale is not None:
        raise ValueError("fp16 scales one loss, and several named optimizers have several: use bf16, which needs none")
    return plain.backward
