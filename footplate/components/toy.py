"""Models and data that need no file and train in seconds: for first steps, for tests and for demonstrations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from footplate.components.component import component
from footplate.components.toy_data import Classification, Regression, Text
from footplate.components.toy_models import GptForCausalLM, Mlp

Numbers = Annotated[int, Field(ge=1), "Numbers per sample"]
Samples = Annotated[int, Field(ge=1), "Samples"]
Slow = Annotated[float, Field(ge=0), "For demonstrations: makes each item take this long"]

mlp = component(
    Mlp,
    "A small multi-layer perceptron. Whole-number labels are classified, others regressed.",
    in_features=Numbers,
    hidden=Annotated[int, Field(ge=1), "Width of the hidden layers"],
    depth=Annotated[int, Field(ge=0), "The number of hidden layers"],
    out_features=Annotated[int, Field(ge=1), "Numbers, or classes, in an output"],
    dropout=Annotated[float, Field(ge=0, lt=1), "Share of hidden units left out in training"],
)
gpt = component(
    GptForCausalLM,
    "A tiny GPT over characters, its output tied to its embedding.",
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
    Text,
    "Sentences of a small grammar, cut into samples of characters, for a language model.",
    n=Samples,
    length=Annotated[int, Field(ge=1), "Characters per sample"],
    seed=Annotated[int, "The seed of the text"],
    seconds_per_item=Slow,
)
