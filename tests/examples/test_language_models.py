"""examples/language-models, through the whole server: every kind of language model learns its stories."""

from __future__ import annotations

import json

import pytest

from tests.examples.conftest import EXAMPLES, Examples

BARS = {
    "causal-lm": ("eval_perplexity", 8.0),
    "masked-lm": ("eval_perplexity", 8.0),
    "seq2seq": ("eval_loss", 1.8),
    "span-corruption": ("eval_loss", 1.5),
    "token-classification": ("eval_loss", 0.2),
}
"""What an untrained one is far above: there are 36 tokens, and so its perplexity is 36, its loss 3.6."""


def test_every_example_here_has_a_bar() -> None:
    assert {path.stem for path in (EXAMPLES / "language-models").glob("*.json")} == BARS.keys()


@pytest.fixture(scope="module")
def jobs(examples: Examples) -> dict[str, str]:
    """All at once: they share the node's slots."""
    return {name: examples.submit(f"language-models/{name}.json") for name in BARS}


@pytest.mark.parametrize("name", BARS)
def test_a_language_model_learns_its_stories(examples: Examples, jobs: dict[str, str], name: str) -> None:
    done = examples.ended(jobs[name])

    assert done["state"] == "succeeded", done
    metric, bar = BARS[name]
    evaluated = [row[metric] for row in examples.system.metrics(jobs[name]) if metric in row]
    assert evaluated[-1] < bar
    files = examples.outputs(jobs[name])
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files.keys()
    assert json.loads(files["config.json"])["vocab_size"] < 50
