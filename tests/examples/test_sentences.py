"""Tests examples/sentences: a first fine-tuning, and the results that a user of transformers expects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.conftest import Examples


@pytest.mark.matrix
def test_bert_learns_sentences_and_its_output_loads_by_from_pretrained(examples: Examples, tmp_path: Path) -> None:
    job = examples.run("sentences/job.json")

    assert (job["state"], job["reason"]) == ("succeeded", "completed"), job
    assert job["result"]["best"]["metric"] == "accuracy"
    assert job["result"]["best"]["value"] > 0.9
    files = examples.outputs(job["id"])
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
