"""Attention over a sequence that is split over a group of processes, for context parallelism.

Each process keeps its own queries and gathers the keys and values of all. During forward and backward, this module
replaces torch's `scaled_dot_product_attention`. Backward is included because activation checkpointing runs forward
again there. Models of transformers use this attention without a mask, because their own mask fits only one piece.
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

_NAME = "footplate_context_parallel"
_TORCHS = functional.scaled_dot_product_attention
_HINT = "train it without cp_size, with DDP or FSDP"


class SharedAttention:
    """Causal attention of one process's queries to the keys and values of all processes of its group."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.group, self.rank, self.size = group, rank, size
        self._masks: dict[tuple[int, int, torch.device], Tensor] = {}

    @contextmanager
    def over(self, configs: list[Any], length: int) -> Iterator[None]:
        """Replaces attention inside the `with` block. Each process has two pieces of `length` tokens."""
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
            for config, name in before:
                config._attn_implementation = name

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
            raise NotAvailableYet(
                "the model's attention is not causal or has its own mask, which cp_size does not support", hint=_HINT
            )
        if not query.shape[-2] == key.shape[-2] == 2 * self.length:
            raise NotAvailableYet(
                f"an attention layer got {query.shape[-2]} queries and {key.shape[-2]} keys for a piece of "
                f"{2 * self.length} tokens: cp_size supports only attention from all tokens to all",
                hint=_HINT,
            )
        key, value = self._gather(key, value)
        if enable_gqa:
            # torch's GPU kernels need equal numbers of heads if a mask is given.
            times = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
        outputs = []
        for piece_query, piece in zip(query.chunk(2, -2), own_pieces(self.rank, self.size), strict=True):
            until = (piece + 1) * self.length
            mask = self._mask(until, query.device)
            output = _TORCHS(piece_query, key[..., :until, :], value[..., :until, :], mask, dropout_p, scale=scale)
            outputs.append(output)
        return torch.cat(outputs, -2)

    def _gather(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Gathers the keys and values of all processes in one message, in the order of the sequence."""
        width = key.shape[-1]
        every = _Gathered.apply(torch.cat([key, value], -1), self.group, self.rank, self.size)  # type: ignore[no-untyped-call]
        fronts, backs = zip(*(tensor.chunk(2, -2) for tensor in every), strict=True)
        keys_and_values = torch.cat([*fronts, *reversed(backs)], -2)
        return keys_and_values[..., :width], keys_and_values[..., width:]

    def _mask(self, until: int, device: torch.device) -> Tensor:
        """Returns the causal mask of the piece of tokens that ends at `until`. All layers use the same tensor."""
        key = (self.length, until, device)
        if key not in self._masks:
            sees = torch.ones(self.length, until, dtype=torch.bool, device=device)
            self._masks[key] = sees.tril(until - self.length)
        return self._masks[key]


def own_pieces(rank: int, size: int) -> tuple[int, int]:
    """Returns the numbers of a process's two pieces, of 2 * size in all: one from the front and one from the back."""
    return rank, 2 * size - 1 - rank


class _Gathered(torch.autograd.Function):
    """Gathers each process's tensor, by rank. Backward sums all processes' gradients of this process's tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any, rank: int, size: int) -> tuple[Tensor, ...]:
        ctx.group, ctx.rank = group, rank
        tensor = tensor.contiguous()
        every = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(every, tensor, group=group)
        return tuple(every)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        # Gradients are summed in single precision, as one process would sum over its queries.
        own_gradients = [gradient.float().contiguous() for gradient in gradients]
        own_gradient = torch.empty_like(own_gradients[ctx.rank])
        dist.reduce_scatter(own_gradient, own_gradients, group=ctx.group)
        return own_gradient.to(gradients[0].dtype), None, None, None


# Models of transformers


def configs_of(model: nn.Module) -> list[Any]:
    """Returns the configs that name the model's attention. A model that is not from transformers has none."""
    configs = {
        id(config): config for module in model.modules() if (config := getattr(module, "config", None)) is not None
    }
    return [config for config in configs.values() if isinstance(getattr(config, "_attn_implementation", None), str)]


def require_shareable(model: nn.Module) -> None:
    """Raises an error if the model's config shows that its attention cannot be split over processes."""
    for config in configs_of(model):
        if config._attn_implementation != "sdpa":
            raise ValueError(
                f"cp_size splits torch's scaled_dot_product_attention, and the model's attention is "
                f"{config._attn_implementation!r}: load it with attn_implementation='sdpa'"
            )
        kinds = {kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"}
        if kinds:
            raise NotAvailableYet(
                f"the model has layers of {', '.join(sorted(kinds))}, but cp_size supports only full_attention",
                hint=_HINT,
            )


@functools.cache
def _name() -> str:
    """Registers this attention with transformers on first use, and returns its name there."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Any:
        unsupported = {name for name in ("sliding_window", "position_bias", "s_aux") if kwargs.get(name) is not None}
        if unsupported or kwargs.pop("is_causal", None) is False or not getattr(module, "is_causal", True):
            feature = (
                f"attention with {', '.join(sorted(unsupported))}" if unsupported else "attention that is not causal"
            )
            text = f"the model has {feature}, and cp_size supports only causal attention over all earlier tokens"
            raise NotAvailableYet(text, hint=_HINT)
        return sdpa_attention_forward(module, query, key, value, None, is_causal=True, **kwargs)

    AttentionInterface.register(_NAME, attend)
    return _NAME
