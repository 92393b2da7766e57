"""Tests that every kind of language model in examples/language-models learns the stories."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import pytest

from tests.examples.conftest import EXAMPLES, Examples

BARS = {
    "causal-lm": ("eval_perplexity", 8.0),
    "generation": ("eval_loss", 0.8),
    "lora": ("eval_perplexity", 10.0),
    "masked-lm": ("eval_perplexity", 8.0),
    "seq2seq": ("eval_loss", 1.8),
    "span-corruption": ("eval_loss", 1.5),
    "token-classification": ("eval_loss", 0.2),
}
"""The limits for a trained model. An untrained model of 36 tokens has a perplexity of 36 and a loss of 3.6."""


def test_every_example_of_a_language_model_has_a_target_loss() -> None:
    assert {path.stem for path in (EXAMPLES / "language-models").glob("*.json")} == BARS.keys()


@pytest.fixture(scope="module")
def submitted(examples: Examples) -> Callable[[str], str]:
    """Returns a function that submits an example once, and returns its job."""
    return cache(lambda name: examples.submit(f"language-models/{name}.json"))


@pytest.mark.parametrize(
    "name", [name if name == "causal-lm" else pytest.param(name, marks=pytest.mark.matrix) for name in BARS]
)
def test_a_language_model_reaches_its_target_loss(
    examples: Examples, submitted: Callable[[str], str], name: str
) -> None:
    job = submitted(name)
    outcome = examples.ended(job)

    assert outcome["state"] == "succeeded", outcome
    metric, bar = BARS[name]
    evaluated = [row[metric] for row in examples.system.metrics(job) if metric in row]
    assert evaluated[-1] < bar
    files = examples.outputs(job)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files.keys()
    assert not [name for name in files if "adapter" in name]
    assert json.loads(files["config.json"])["vocab_size"] < 50
