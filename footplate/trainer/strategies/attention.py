"""Attention over a sequence that is cut over a group: queries stay, keys and values come from everybody.

For the time of a forward and its backward, in which activation checkpointing may compute forward again, torch's
`scaled_dot_product_attention` is ours, and transformers' models are told to use no other and to make no mask: theirs
would be that of a piece.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.strategies.sequence_split import own_pieces

_NAME = "footplate_context_parallel"
_TORCHS = functional.scaled_dot_product_attention
_HINT = "train it without cp_size, by DDP or FSDP"


class SharedAttention:
    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.group, self.rank, self.size = group, rank, size
        self._masks: dict[tuple[int, int, torch.device], Tensor] = {}

    @contextmanager
    def over(self, configs: list[Any], length: int) -> Iterator[None]:
        """`length` is that of each of the two pieces that this process has."""
        self.length = length
        before = [(config, config._attn_implementation) for config in configs]
        functional.scaled_dot_product_attention = self._attend
        try:
            for config in configs:
                config._attn_implementation = _name()
            yield
        finally:
            functional.scaled_dot_product_attention = _TORCHS
            self._masks.clear()
            for config, asked in before:
                config._attn_implementation = asked

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if attn_mask is not None or not is_causal:
            raise NotAvailableYet("the model has attention that is not causal, or with a mask of its own", hint=_HINT)
        if not query.shape[-2] == key.shape[-2] == 2 * self.length:
            raise NotAvailableYet(
                f"the model attends from {query.shape[-2]} places to {key.shape[-2]}, of a piece with "
                f"{2 * self.length}: cp_size shares attention from all places to all",
                hint=_HINT,
            )
        key, value = self._everyones(key, value)
        if enable_gqa:
            # With a mask torch's kernels for GPUs take as many heads of each.
            times = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
        found = []
        for part, piece in zip(query.chunk(2, -2), own_pieces(self.rank, self.size), strict=True):
            until = (piece + 1) * self.length
            mask = self._mask(until, query.device)
            one = _TORCHS(part, key[..., :until, :], value[..., :until, :], mask, dropout_p, scale=scale)
            found.append(one)
        return torch.cat(found, -2)

    def _everyones(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """In the sequence's order, in one message."""
        width = key.shape[-1]
        every = _Gathered.apply(torch.cat([key, value], -1), self.group, self.rank, self.size)  # type: ignore[no-untyped-call]
        fronts, backs = zip(*(each.chunk(2, -2) for each in every), strict=True)
        both = torch.cat([*fronts, *reversed(backs)], -2)
        return both[..., :width], both[..., width:]

    def _mask(self, until: int, device: torch.device) -> Tensor:
        """Of a piece that ends there: what each of its places sees. Made once for all layers."""
        key = (self.length, until, device)
        if key not in self._masks:
            sees = torch.ones(self.length, until, dtype=torch.bool, device=device)
            self._masks[key] = sees.tril(until - self.length)
        return self._masks[key]


class _Gathered(torch.autograd.Function):
    """Each process's tensor, in their order. Back comes to each the sum of what all say of its own."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Any, rank: int, size: int) -> tuple[Tensor, ...]:
        ctx.group, ctx.rank = group, rank
        own = own.contiguous()
        every = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(every, own, group=group)
        return tuple(every)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        # In single precision, as one process sums over its queries.
        told = [each.float().contiguous() for each in gradients]
        own = torch.empty_like(told[ctx.rank])
        dist.reduce_scatter(own, told, group=ctx.group)
        return own.to(gradients[0].dtype), None, None, None


# transformers


def configs_of(model: nn.Module) -> list[Any]:
    """Those that say how it attends: none, of a model of one's own."""
    found = {id(each): each for module in model.modules() if (each := getattr(module, "config", None)) is not None}
    return [each for each in found.values() if isinstance(getattr(each, "_attn_implementation", None), str)]


def require_shareable(model: nn.Module) -> None:
    """What can be said of a model before it has computed anything."""
    for config in configs_of(model):
        if config._attn_implementation != "sdpa":
            raise ValueError(
                f"cp_size shares torch's scaled_dot_product_attention out, and the model has the attention "
                f"{config._attn_implementation!r}: load it with attn_implementation='sdpa'"
            )
        kinds = {each for each in getattr(config, "layer_types", None) or () if each != "full_attention"}
        if kinds:
            raise NotAvailableYet(
                f"the model has layers of {', '.join(sorted(kinds))}, and cp_size knows full_attention", hint=_HINT
            )


@functools.cache
def _name() -> str:
    """Registered where transformers is, and not before: a model of one's own needs none."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Any:
        own = {name for name in ("sliding_window", "position_bias", "s_aux") if kwargs.get(name) is not None}
        if own or kwargs.pop("is_causal", None) is False or not getattr(module, "is_causal", True):
            said = f"attention with {', '.join(sorted(own))}" if own else "attention that is not causal"
            raise NotAvailableYet(f"the model has {said}, and cp_size shares causal attention to all", hint=_HINT)
        return sdpa_attention_forward(module, query, key, value, None, is_causal=True, **kwargs)

    AttentionInterface.register(_NAME, attend)
    return _NAME
