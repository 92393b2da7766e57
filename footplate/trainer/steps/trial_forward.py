"""Whether a model computes the same in pieces: tried before the first step, on the beginning of the first sample.

Not everything that mixes places is attention, and not every attention is torch's: recurrent and convolutional layers,
biases by distance, a loss with terms of its own. Nobody can read that off a model; so it is computed once whole and
once in pieces, and what is not the same is refused.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from footplate.contract.errors import NotAvailableYet
from footplate.trainer import losses
from footplate.trainer.facade import Facade
from footplate.trainer.strategies.attention import configs_of
from footplate.trainer.strategies.context_parallel import ContextParallel
from footplate.trainer.strategies.sequence_split import cut

_PLACES_PER_PIECE = 32
_FAR = 1e-4
"""Of the largest number: what is left of a sum in another order is a hundredth of that."""
_FAR_IN_HALF = 5e-2


def rehearse(trainer: Facade, strategy: ContextParallel, batch: Any) -> None:
    model, size = trainer.model, strategy.context_parallel
    strategy.cut(batch)  # what of a batch cannot be cut is said first
    tokens = batch["input_ids"][:1, : 2 * size * _PLACES_PER_PIECE]
    piece = cut({"input_ids": tokens, "labels": tokens}, strategy.peers.rank % size, size)
    tokens, inputs, places = strategy.to_device((tokens, piece.inputs, piece.places))
    # Without the autocast that Accelerate has put around it: in single precision what is far shows.
    forward = vars(model).get("_original_forward", model)
    was_training = model.training
    model.eval()  # nothing is drawn, so the run stays the one it would have been
    try:
        with torch.no_grad():
            whole = forward(input_ids=tokens, **({"labels": tokens} if trainer._footplate.anatomy.takes_labels else {}))
            with strategy.attention.over(configs_of(model), piece.length):
                own = losses.logits_of(forward(**inputs))
    finally:
        model.train(was_training)
    logits = losses.logits_of(whole)
    real = places < tokens.shape[1]
    far = _relative(own[:, real], logits[:, places[real]])
    told = strategy.peers.everyone((far, _loss_is_far(whole, logits, tokens)))
    _tell(model, strategy, *(max(each) for each in zip(*told, strict=True)), is_single=logits.dtype == torch.float32)


def _relative(found: Tensor, expected: Tensor) -> float:
    if not expected.numel():
        return 0.0
    return _number((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


def _loss_is_far(outputs: Any, logits: Tensor, tokens: Tensor) -> float:
    """The model's own from the one that is computed here in its place."""
    said = losses.own_loss(outputs)
    if said is None or tokens.shape[1] < 2:
        return 0.0
    ours = losses.classification(*losses.shifted(logits, tokens)).over(None)
    return _number((said - ours).abs() / ours.abs().clamp(min=1e-12))


def _number(found: Tensor) -> float:
    return math.inf if found.isnan() else float(found)


def _tell(model: nn.Module, strategy: ContextParallel, logits: float, loss: float, *, is_single: bool) -> None:
    is_cast = strategy.precision != "no" and "_original_forward" not in vars(model)
    is_exact = is_single and not is_cast and torch.get_float32_matmul_precision() == "highest"
    limit = _FAR if is_exact else _FAR_IN_HALF
    kind, size = type(model).__name__, strategy.context_parallel
    if logits > limit:
        raise NotAvailableYet(
            f"cut over {size} processes, {kind} computes other logits than whole, by {logits:.1e} of the largest: "
            "something in it looks at other places, and is neither torch's scaled_dot_product_attention nor follows "
            "position_ids",
            hint="train it without cp_size, by DDP or FSDP",
        )
    if loss > max(limit, 1e-3):
        raise NotAvailableYet(
            f"the loss of {kind} is not the cross entropy of the next token, which is what cp_size {size} computes of "
            f"its pieces: they differ by {loss:.1e} of it",
            hint="leave out what it adds, such as output_router_logits, or train it without cp_size",
        )
