"""The models of toy/mlp and toy/gpt."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mlp(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(
        self, in_features: int = 8, hidden: int = 64, depth: int = 2, out_features: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = in_features
        for _ in range(depth):
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
            width = hidden
        self.layers = nn.Sequential(*layers, nn.Linear(width, out_features))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits: Tensor = self.layers(x)
        if labels is None:
            return {"logits": logits}
        if labels.is_floating_point():
            return {"loss": functional.mse_loss(logits, labels), "logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Block(nn.Module):
    """Attention to earlier tokens, then a feed-forward layer. Each is added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.merge(self._attend(self.norm_attention(x)))
        fed: Tensor = self.feed(self.norm_feed(x))
        return x + fed

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.query_key_value(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class GptForCausalLM(nn.Module):
    """Predicts the next token. The loss is a mean over all tokens of a sample but the last."""

    def __init__(
        self, vocab_size: int = 32, layers: int = 2, heads: int = 2, width: int = 64, context: int = 128,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if width % heads:
            raise ValueError(f"toy/gpt: width {width} is not a multiple of heads {heads}")
        self.context = context
        self.tokens, self.places = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
        self.apply(_small)
        self.head.weight = self.tokens.weight

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, position_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        length = input_ids.shape[1]
        if length > self.context:
            raise ValueError(f"toy/gpt: a sample has {length} tokens, and context is {self.context}")
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device)
        x = self.tokens(input_ids) + self.places(position_ids)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        if labels is None:
            return {"logits": logits}
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def _small(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
