"""The model toy/compression, a tiny learned codec with an encoder, an entropy bottleneck and a decoder.

It needs two optimizers: one for the main loss, and one for the quantiles of the entropy bottleneck.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from footplate.components.component import component

TAIL = 4.0
"""The logit beyond which a cumulative density counts as 0 or 1."""


class EntropyBottleneck(nn.Module):
    """A logistic density per channel, trained by the main loss, and its quantiles, trained by a second loss."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.quantiles = nn.Parameter(torch.tensor([-10.0, 0.0, 10.0]).repeat(channels, 1))
        self.place, self.log_scale = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the decoder's input and its cost in bits. In training, noise replaces rounding."""
        medians = self.quantiles[:, 1].detach()
        rounded = y + torch.rand_like(y) - 0.5 if self.training else torch.round(y - medians) + medians
        likelihood = torch.sigmoid(self._logits(rounded + 0.5)) - torch.sigmoid(self._logits(rounded - 0.5))
        return rounded, -torch.log2(likelihood.clamp(min=1e-9))

    def _logits(self, y: Tensor) -> Tensor:
        return (y - self.place) / self.log_scale.exp()

    def loss(self) -> Tensor:
        """Returns the distance of the quantiles from the density's tails and middle.

        Only the quantiles get a gradient from this loss.
        """
        place, scale = self.place.detach()[:, None], self.log_scale.detach().exp()[:, None]
        targets = torch.tensor([-TAIL, 0.0, TAIL], device=place.device)
        return ((self.quantiles - place) / scale - targets).abs().sum()


class Codec(nn.Module):
    """A codec that is trained on the reconstruction error plus the bits times a weight.

    Its output `logits` are the decoded samples.
    """

    def __init__(self, in_features: int = 8, channels: int = 4, rate_weight: float = 0.01) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(in_features, channels), nn.Linear(channels, in_features)
        self.bottleneck = EntropyBottleneck(channels)
        self.rate_weight = rate_weight

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        rounded, bits = self.bottleneck(self.encode(x))
        decoded = self.decode(rounded)
        loss = functional.mse_loss(decoded, x) + self.rate_weight * bits.mean()
        return {"loss": loss, "logits": decoded}

    def aux_loss(self) -> Tensor:
        loss: Tensor = self.bottleneck.loss()
        return loss


compression = component(
    Codec,
    "A codec with an entropy bottleneck. A second loss, `aux_loss`, trains its parameters `.quantiles`.",
    in_features=Annotated[int, "Numbers per sample"],
    channels=Annotated[int, "Numbers in a compressed sample"],
    rate_weight=Annotated[float, "The weight of the number of bits in the loss, beside the reconstruction error"],
)
