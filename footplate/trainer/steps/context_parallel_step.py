"""The optimizer step of context parallelism: each process computes forward and backward of its pieces of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.losses.loss import classification, logits_of
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.overrides import Shortcut
from footplate.trainer.steps import trial_forward
from footplate.trainer.steps.shared_step import SharedStep
from footplate.trainer.strategies import attention
from footplate.trainer.strategies.context_parallel import ContextParallel

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


class ContextParallelStep(SharedStep):
    """An optimizer step in which each process computes forward and backward of its pieces of every sample."""

    strategy: ContextParallel

    def __init__(self, trainer: Trainer) -> None:
        _require_plain(trainer)
        super().__init__(trainer)
        self.configs = attention.configs_of(trainer.model)
        self.micro_step = self._first_micro_batch

    def _first_micro_batch(self, batch: Any, items: Tensor | int | None) -> Tensor:
        trial_forward.require_same_in_pieces(self.trainer, self.strategy, batch)
        return self._first_micro_step(self._of_pieces, batch, items)

    def _of_pieces(self, batch: Any, items: Tensor | int | None) -> Tensor:
        trainer, strategy = self.trainer, self.strategy
        shard = strategy.cut(batch)
        inputs, labels, count = strategy.to_device((shard.inputs, shard.labels, shard.count))
        with strategy.attention.over(self.configs, shard.length):
            outputs = self.model(**inputs)
            loss = self._loss(outputs, labels, count if items is None else items)
            # The losses of a group's pieces must add up, but gradients are averaged. This factor makes up for that.
            loss = loss * strategy.context_parallel
            forced = trainer.loss_is_scaled_for_ga
            if items is not None:
                loss = loss * strategy.loss_factor
            if not ((items is not None) if forced is None else forced):
                loss = loss / trainer.current_gradient_accumulation_steps
            strategy.backward(loss)
        return loss.detach()

    def _loss(self, outputs: Any, labels: Tensor, items: Tensor | int) -> Tensor:
        smoother = self.trainer.label_smoother
        if smoother is not None:
            return smoother(outputs, labels, num_items_in_batch=items)
        return classification(logits_of(outputs), labels).over(items)


def _require_plain(trainer: Trainer) -> None:
    strategy, signature = trainer._footplate.strategy, trainer._footplate.model_signature
    size = strategy.context_parallel
    overrides = trainer._footplate.overrides.against(Shortcut.TRAINING_STEP)
    if trainer.compute_loss_func is not None:
        overrides.append("compute_loss_func")
    if overrides:
        raise NotAvailableYet(
            f"cp_size {size} works only with the built-in loss, but the Trainer has its own {', '.join(overrides)}",
            hint=f"leave out {', '.join(overrides)}, or train without cp_size",
        )
    if isinstance(strategy.plain_optimizer(trainer.optimizer), NamedOptimizers):
        raise NotAvailableYet(
            f"cp_size {size} supports one loss, and several named optimizers have one each",
            hint="use one optimizer, or train without cp_size",
        )
    family, class_name = signature.family, type(trainer.model).__name__
    if family is None or family.name not in ("ForCausalLM", "LMHeadModel"):
        raise NotAvailableYet(
            f"cp_size {size} splits samples of causal language models, and the model's class name, {class_name}, does "
            "not end with ForCausalLM",
            hint="give the class such a name if its logits at one position predict the next token",
        )
    if "position_ids" not in signature.arguments:
        raise NotAvailableYet(
            f"cp_size {size} passes positions to a model as position_ids, which forward of {class_name} does not take",
            hint="give forward an argument position_ids, and use it as the tokens' positions",
        )
    attention.require_shareable(trainer.model)
