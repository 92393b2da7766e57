"""The Trainer's optimizer and schedule: made from the arguments, handed in, or made by an override."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from footplate.contract import arguments as contract_arguments
from footplate.trainer import optimizers, schedules
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.parts import Parts


class Optimizing(Parts):
    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        self.create_optimizer()
        self.create_scheduler(num_training_steps, self.optimizer)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        if self.optimizer is None:
            of = self.model if model is None else model
            made, kwargs = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, of)
            decay = self.get_decay_parameter_names(of)
            self.optimizer = optimizers.make_optimizer(made, kwargs, of, decay, self.args.weight_decay)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        if self.lr_scheduler is None:
            self.made_schedule = True
            plain = self.strategy.plain_optimizer(optimizer if optimizer is not None else self.optimizer)
            if isinstance(plain, NamedOptimizers):
                self.lr_scheduler = plain.make_schedule(num_training_steps)
                return self.lr_scheduler
            self.lr_scheduler = schedules.make_schedule(
                self.args.lr_scheduler_type,
                plain,
                warmup=self.args.get_warmup_steps(num_training_steps),
                total=num_training_steps,
                kwargs=self.args.lr_scheduler_kwargs,
            )
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: contract_arguments.TrainingArguments, model: nn.Module | None = None
    ) -> tuple[type[Optimizer], dict[str, Any]]:
        return optimizers.optimizer_class(args, model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return optimizers.decay_parameter_names(model)

    def get_num_trainable_parameters(self) -> int:
        return sum(self.strategy.elements(each) for each in self.model.parameters() if each.requires_grad)

    def get_learning_rates(self) -> list[float]:
        return [group["lr"] for group in self._the_optimizer().param_groups]

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> Any:
        """The group that a parameter is in; all groups' parameters where none is named."""
        groups = self._the_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        wanted = dict(self.model.named_parameters())[param] if isinstance(param, str) else param
        return next((group for group in groups if any(each is wanted for each in group["params"])), None)

    @property
    def optimizer_by_name(self) -> dict[str, Optimizer]:
        """Of several optimizers, each; empty where there is one."""
        plain = self.strategy.plain_optimizer(self.optimizer)
        return plain.by_name if isinstance(plain, NamedOptimizers) else {}

    def _get_learning_rate(self) -> float:
        return float(self._the_optimizer().param_groups[0]["lr"])

    def _the_optimizer(self) -> Any:
        if self.optimizer is None:
            raise ValueError("there is no optimizer yet: call create_optimizer() or train() first")
        return self.optimizer
