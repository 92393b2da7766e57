"""Models and data that need no file and train in seconds: for first steps, for tests and for demonstrations.

Importing this imports no torch, so that a catalogue of components is cheap; building one does.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field


def mlp(
    *,
    in_features: Annotated[int, Field(ge=1), "Numbers per sample"] = 8,
    hidden: Annotated[int, Field(ge=1), "Width of the hidden layers"] = 64,
    depth: Annotated[int, Field(ge=0), "How many hidden layers"] = 2,
    out_features: Annotated[int, Field(ge=1), "Numbers, or classes, that come out"] = 4,
    dropout: Annotated[float, Field(ge=0, lt=1), "Share of hidden units left out in training"] = 0.0,
) -> Any:
    """A small multi-layer perceptron. Whole-number labels are classified, others regressed."""
    from footplate.components.toy_models import Mlp

    return Mlp(in_features, hidden, depth, out_features, dropout)


def gpt(
    *,
    vocab_size: Annotated[int, Field(ge=1), "Characters it knows; toy/text has 32"] = 32,
    layers: Annotated[int, Field(ge=1), "Transformer blocks"] = 2,
    heads: Annotated[int, Field(ge=1), "Attention heads"] = 2,
    width: Annotated[int, Field(ge=1), "Numbers per token; a multiple of heads"] = 64,
    context: Annotated[int, Field(ge=1), "Longest sequence"] = 128,
    dropout: Annotated[float, Field(ge=0, lt=1), "Share of activations left out in training"] = 0.0,
) -> Any:
    """A tiny GPT over characters, its output tied to its embedding."""
    from footplate.components.toy_models import GptForCausalLM

    return GptForCausalLM(vocab_size, layers, heads, width, context, dropout)


def regression(
    *,
    n: Annotated[int, Field(ge=1), "Samples"] = 512,
    in_features: Annotated[int, Field(ge=1), "Numbers per sample"] = 8,
    out_features: Annotated[int, Field(ge=1), "Numbers to predict"] = 4,
    noise: Annotated[float, Field(ge=0), "Standard deviation of what cannot be learned"] = 0.1,
    seed: Annotated[int, "Which data"] = 0,
    seconds_per_item: Annotated[float, Field(ge=0), "For demonstrations: makes each item take this long"] = 0.0,
) -> Any:
    """Samples of a smooth function that an MLP can learn."""
    from footplate.components.toy_data import Regression

    return Regression(n, in_features, out_features, noise, seed, seconds_per_item)


def classification(
    *,
    n: Annotated[int, Field(ge=1), "Samples"] = 512,
    in_features: Annotated[int, Field(ge=1), "Numbers per sample"] = 8,
    classes: Annotated[int, Field(ge=1), "Clouds of points, one per class"] = 4,
    noise: Annotated[float, Field(ge=0), "How far the clouds spread"] = 1.0,
    seed: Annotated[int, "Which data"] = 0,
    seconds_per_item: Annotated[float, Field(ge=0), "For demonstrations: makes each item take this long"] = 0.0,
) -> Any:
    """Points around one centre per class."""
    from footplate.components.toy_data import Classification

    return Classification(n, in_features, classes, noise, seed, seconds_per_item)


def text(
    *,
    n: Annotated[int, Field(ge=1), "Samples"] = 512,
    length: Annotated[int, Field(ge=1), "Characters per sample"] = 64,
    seed: Annotated[int, "Which text"] = 0,
    seconds_per_item: Annotated[float, Field(ge=0), "For demonstrations: makes each item take this long"] = 0.0,
) -> Any:
    """Sentences of a small grammar, cut into samples of characters, for a language model."""
    from footplate.components.toy_data import Text

    return Text(n, length, seed, seconds_per_item)
