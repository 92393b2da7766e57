"""The datasets toy/regression, toy/classification and toy/text: small, and equal for equal seeds."""

from __future__ import annotations

import random
import time

import torch
from torch import Tensor
from torch.utils.data import Dataset

ALPHABET = " .,abcdefghijklmnopqrstuvwxyz\n!?"
"""The 32 characters of the texts of toy/text."""


class _Slow(Dataset[dict[str, Tensor]]):
    """A dataset whose items can take some time, for demonstrations."""

    def __init__(self, n: int, seconds_per_item: float) -> None:
        self.n, self.seconds_per_item = n, seconds_per_item

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.seconds_per_item:
            time.sleep(self.seconds_per_item)
        return self.item(index)

    def item(self, index: int) -> dict[str, Tensor]:
        raise NotImplementedError


class Regression(_Slow):
    def __init__(
        self, n: int = 512, in_features: int = 8, out_features: int = 4, noise: float = 0.1, seed: int = 0,
        seconds_per_item: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(n, seconds_per_item)
        generator = torch.Generator().manual_seed(seed)
        # The function to learn is the same for every seed, so that an evaluation set may have another one.
        function = torch.Generator().manual_seed(1234)
        weights = torch.randn(in_features, out_features, generator=function)
        self.x = torch.randn(n, in_features, generator=generator)
        self.y = torch.sin(self.x @ weights / in_features**0.5)
        self.y += noise * torch.randn(n, out_features, generator=generator)

    def item(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Classification(_Slow):
    def __init__(
        self, n: int = 512, in_features: int = 8, classes: int = 4, noise: float = 1.0, seed: int = 0,
        seconds_per_item: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(n, seconds_per_item)
        generator = torch.Generator().manual_seed(seed)
        centres = 2.0 * torch.randn(classes, in_features, generator=torch.Generator().manual_seed(1234))
        self.y = torch.randint(classes, (n,), generator=generator)
        self.x = centres[self.y] + noise * torch.randn(n, in_features, generator=generator)

    def item(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Text(_Slow):
    def __init__(self, n: int = 512, length: int = 64, seed: int = 0, seconds_per_item: float = 0.0) -> None:
        super().__init__(n, seconds_per_item)
        self.length = length
        dice, characters = random.Random(seed), ""
        while len(characters) < n * length:
            characters += _sentence(dice)
        self.tokens = torch.tensor([ALPHABET.index(character) for character in characters])

    def item(self, index: int) -> dict[str, Tensor]:
        tokens = self.tokens[index * self.length : (index + 1) * self.length]
        return {"input_ids": tokens, "labels": tokens.clone()}


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
