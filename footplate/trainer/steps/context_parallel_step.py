"""The optimizer step of context parallelism: each process computes forward and backward of its pieces of a batch.

Before the first step, the start of the first sample is computed whole and in pieces, and a model with different results
is refused. Layers other than torch's attention may combine positions: recurrent and convolutional layers, biases by
distance, or further terms of the loss. A model does not declare them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.losses.loss import classification, logits_of, own_loss, shifted
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.overrides import Shortcut
from footplate.trainer.steps.shared_step import SharedStep
from footplate.trainer.strategies import attention
from footplate.trainer.strategies.context_parallel import ContextParallel, cut

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

_TOKENS_PER_PIECE = 32
_LARGEST_DIFFERENCE = 1e-4
"""The largest allowed difference, as a share of the largest value. Rounding alone causes a hundredth of it."""
_LARGEST_DIFFERENCE_IN_HALF_PRECISION = 5e-2


class ContextParallelStep(SharedStep):
    """An optimizer step in which each process computes forward and backward of its pieces of every sample."""

    strategy: ContextParallel

    def __init__(self, trainer: Trainer) -> None:
        _require_plain(trainer)
        super().__init__(trainer)
        self.configs = attention.configs_of(trainer.model)
        self.micro_step = self._first_micro_batch

    def _first_micro_batch(self, batch: Any, items: Tensor | int | None) -> Tensor:
        require_same_in_pieces(self.trainer, self.strategy, batch)
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


def require_same_in_pieces(trainer: Trainer, strategy: ContextParallel, batch: Any) -> None:
    model, size = trainer.model, strategy.context_parallel
    strategy.cut(batch)  # raises its own error if the batch cannot be split
    tokens = batch["input_ids"][:1, : 2 * size * _TOKENS_PER_PIECE]
    shard = cut({"input_ids": tokens, "labels": tokens}, strategy.peers.rank % size, size)
    tokens, inputs, positions = strategy.to_device((tokens, shard.inputs, shard.positions))
    # Without Accelerate's autocast, because single precision shows a difference more clearly.
    forward = vars(model).get("_original_forward", model)
    was_training = model.training
    model.eval()  # dropout would draw random numbers, and change the run
    try:
        with torch.no_grad():
            outputs = forward(
                input_ids=tokens, **({"labels": tokens} if trainer._footplate.model_signature.takes_labels else {})
            )
            with strategy.attention.over(attention.configs_of(model), shard.length):
                own_logits = logits_of(forward(**inputs))
    finally:
        model.train(was_training)
    logits = logits_of(outputs)
    real = positions < tokens.shape[1]
    difference = _relative_difference(own_logits[:, real], logits[:, positions[real]])
    differences = strategy.peers.all_gather((difference, _loss_difference(outputs, logits, tokens)))
    _refuse_if_different(
        model,
        strategy,
        *(max(values) for values in zip(*differences, strict=True)),
        is_single=logits.dtype == torch.float32,
    )


def _relative_difference(actual: Tensor, expected: Tensor) -> float:
    if not expected.numel():
        return 0.0
    return _number((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


def _loss_difference(outputs: Any, logits: Tensor, tokens: Tensor) -> float:
    """Returns the relative difference of the model's own loss from the cross entropy that cp_size computes."""
    model_loss = own_loss(outputs)
    if model_loss is None or tokens.shape[1] < 2:
        return 0.0
    expected = classification(*shifted(logits, tokens)).over(None)
    return _number((model_loss - expected).abs() / expected.abs().clamp(min=1e-12))


def _number(value: Tensor) -> float:
    return math.inf if value.isnan() else float(value)


def _refuse_if_different(
    model: nn.Module, strategy: ContextParallel, logits: float, loss: float, *, is_single: bool
) -> None:
    is_cast = strategy.precision != "no" and "_original_forward" not in vars(model)
    is_exact = is_single and not is_cast and torch.get_float32_matmul_precision() == "highest"
    limit = _LARGEST_DIFFERENCE if is_exact else _LARGEST_DIFFERENCE_IN_HALF_PRECISION
    class_name, size = type(model).__name__, strategy.context_parallel
    if logits > limit:
        raise NotAvailableYet(
            f"split over {size} processes, {class_name} computes logits that differ by {logits:.1e} of the largest "
            "logit: a layer combines positions, but is not torch's scaled_dot_product_attention and does not use "
            "position_ids",
            hint="train it without cp_size, with DDP or FSDP",
        )
    if loss > max(limit, 1e-3):
        raise NotAvailableYet(
            f"the loss of {class_name} is not the cross entropy of the next token, which cp_size {size} computes for "
            f"its pieces: they differ by {loss:.1e}",
            hint="leave out additional terms, such as output_router_logits, or train it without cp_size",
        )
