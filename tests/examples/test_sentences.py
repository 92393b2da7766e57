"""Tests examples/sentences: a first fine-tuning, and the results that a user of transformers expects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.conftest import Examples


@pytest.mark.matrix
def test_bert_learns_sentences_and_its_output_loads_by_from_pretrained(examples: Examples, tmp_path: Path) -> None:
    done = examples.run("sentences/job.json")

    assert (done["state"], done["reason"]) == ("succeeded", "completed"), done
    assert done["result"]["best"]["metric"] == "accuracy"
    assert done["result"]["best"]["value"] > 0.9
    files = examples.outputs(done["id"])
    assert {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"} <= files.keys()
    assert json.loads(files["config.json"])["id2label"] == {"0": "bad", "1": "good"}

    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(tmp_path), device="cpu")
    assert [classify("the cast was brilliant")[0]["label"], classify("the ending is dull")[0]["label"]] == [
        "good",
        "bad",
    ]
