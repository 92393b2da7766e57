"""Models and datasets that need no file and train in seconds, for first steps, tests and demonstrations.

Equal seeds give equal data.
"""

from __future__ import annotations

import random
import time
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from footplate.components.component import component


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
    """A transformer block: attention to earlier tokens and a feed-forward layer, each with a residual connection."""

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
        update: Tensor = self.feed(self.norm_feed(x))
        return x + update

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.query_key_value(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        values = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return values.transpose(1, 2).reshape(batch, length, width)


class GptForCausalLM(nn.Module):
    """A tiny causal language model. Its class name makes the Trainer shift labels by one token."""

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
            raise ValueError(f"toy/gpt: a sample has {length} tokens, but context allows only {self.context}")
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


ALPHABET = " .,abcdefghijklmnopqrstuvwxyz\n!?"
"""The 32 characters of the texts of toy/text."""


class _Columns(Dataset[dict[str, Tensor]]):
    """A dataset of columns. Its items can take some time, for demonstrations."""

    def __init__(self, seconds_per_item: float, **columns: Tensor) -> None:
        self.seconds_per_item, self.columns = seconds_per_item, columns

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.seconds_per_item:
            time.sleep(self.seconds_per_item)
        return {name: column[index] for name, column in self.columns.items()}


class Regression(_Columns):
    def __init__(
        self, n: int = 512, in_features: int = 8, out_features: int = 4, noise: float = 0.1, seed: int = 0,
        seconds_per_item: float = 0.0,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        # The function to learn does not depend on the seed, so that an evaluation set may have another seed.
        function = torch.Generator().manual_seed(1234)
        weights = torch.randn(in_features, out_features, generator=function)
        x = torch.randn(n, in_features, generator=generator)
        y = torch.sin(x @ weights / in_features**0.5)
        y += noise * torch.randn(n, out_features, generator=generator)
        super().__init__(seconds_per_item, x=x, labels=y)


class Classification(_Columns):
    def __init__(
        self, n: int = 512, in_features: int = 8, classes: int = 4, noise: float = 1.0, seed: int = 0,
        seconds_per_item: float = 0.0,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        centres = 2.0 * torch.randn(classes, in_features, generator=torch.Generator().manual_seed(1234))
        y = torch.randint(classes, (n,), generator=generator)
        x = centres[y] + noise * torch.randn(n, in_features, generator=generator)
        super().__init__(seconds_per_item, x=x, labels=y)


class LanguageModeling(_Columns):
    def __init__(self, n: int = 512, length: int = 64, seed: int = 0, seconds_per_item: float = 0.0) -> None:
        dice, characters = random.Random(seed), ""
        while len(characters) < n * length:
            characters += _sentence(dice)
        tokens = torch.tensor([ALPHABET.index(character) for character in characters[: n * length]]).view(n, length)
        super().__init__(seconds_per_item, input_ids=tokens, labels=tokens.clone())


_THINGS = (
    "the driver", "a fireman", "the signal", "an engine", "the night train", "a wagon", "the station", "a bridge",
)  # fmt: skip
_DEEDS = ("sees", "passes", "follows", "waits for", "calls", "leaves", "draws", "warns")
_MANNERS = ("slowly", "at dawn", "in the rain", "with steam", "again", "without a sound")


def _sentence(dice: random.Random) -> str:
    words = [dice.choice(_THINGS), dice.choice(_DEEDS), dice.choice(_THINGS)]
    if dice.random() < 0.5:
        words.append(dice.choice(_MANNERS))
    return " ".join(words) + dice.choice((". ", ".\n", "! ", "? ", ", and "))


Numbers = Annotated[int, Field(ge=1), "Numbers per sample"]
Samples = Annotated[int, Field(ge=1), "Samples"]
Slow = Annotated[float, Field(ge=0), "For demonstrations: makes each item take this long"]

mlp = component(
    Mlp,
    "A small multi-layer perceptron. Whole-number labels are classes, other labels are values of a regression.",
    in_features=Numbers,
    hidden=Annotated[int, Field(ge=1), "Width of the hidden layers"],
    depth=Annotated[int, Field(ge=0), "The number of hidden layers"],
    out_features=Annotated[int, Field(ge=1), "Numbers, or classes, in an output"],
    dropout=Annotated[float, Field(ge=0, lt=1), "Share of hidden units left out in training"],
)
gpt = component(
    GptForCausalLM,
    "A tiny GPT over characters. Its output layer shares the embedding's weights.",
    vocab_size=Annotated[int, Field(ge=1), "The number of characters; toy/text has 32"],
    layers=Annotated[int, Field(ge=1), "Transformer blocks"],
    heads=Annotated[int, Field(ge=1), "Attention heads"],
    width=Annotated[int, Field(ge=1), "Numbers per token; a multiple of heads"],
    context=Annotated[int, Field(ge=1), "Longest sequence"],
    dropout=Annotated[float, Field(ge=0, lt=1), "Share of activations left out in training"],
)
regression = component(
    Regression,
    "Samples of a smooth function that an MLP can learn.",
    n=Samples,
    in_features=Numbers,
    out_features=Annotated[int, Field(ge=1), "Numbers to predict"],
    noise=Annotated[float, Field(ge=0), "The standard deviation of the noise, which cannot be learned"],
    seed=Annotated[int, "The seed of the data"],
    seconds_per_item=Slow,
)
classification = component(
    Classification,
    "Points around one centre per class.",
    n=Samples,
    in_features=Numbers,
    classes=Annotated[int, Field(ge=1), "Clouds of points, one per class"],
    noise=Annotated[float, Field(ge=0), "How far the clouds spread"],
    seed=Annotated[int, "The seed of the data"],
    seconds_per_item=Slow,
)
text = component(
    LanguageModeling,
    "Sentences of a small grammar, cut into samples of characters, for a language model.",
    n=Samples,
    length=Annotated[int, Field(ge=1), "Characters per sample"],
    seed=Annotated[int, "The seed of the text"],
    seconds_per_item=Slow,
)
