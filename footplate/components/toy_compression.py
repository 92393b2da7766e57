"""A tiny learned codec: what several optimizers are for. An encoder, an entropy bottleneck, a decoder."""

from __future__ import annotations

from typing import Annotated, Any


def compression(
    *,
    in_features: Annotated[int, "Numbers per sample"] = 8,
    channels: Annotated[int, "Numbers that a sample is compressed to"] = 4,
    rate_weight: Annotated[float, "How much the bits count beside the error"] = 0.01,
) -> Any:
    """A codec with an entropy bottleneck: `aux_loss` teaches its `.quantiles` where the channels' tails lie."""
    from footplate.components.toy_codec import Codec

    return Codec(in_features, channels, rate_weight)
