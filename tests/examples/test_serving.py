"""Tests answers and exports of trained models with a real service and node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.examples.conftest import Examples
from tests.support.system import System

pytestmark = pytest.mark.matrix


def streamed(system: System, **body: Any) -> list[Any]:
    """Returns the events of a streamed completion."""
    answer = system.client.post("/v1/completions", json={"stream": True, **body})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_trained_adapter_answers_and_its_export_answers_the_same(examples: Examples, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    system, job = examples.system, examples.submit("language-models/lora.json")
    assert examples.ended(job)["state"] == "succeeded"
    body = {"model": job, "prompt": "anna", "max_tokens": 12, "temperature": 0}
    whole = system.client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    *parts, last = streamed(system, **body)
    export = system.client.post(f"/jobs/{job}/export", json={"merge": True}).json()["id"]
    assert examples.ended(export)["state"] == "succeeded"
    for name, content in examples.outputs(export).items():
        (tmp_path / name).write_bytes(content)

    assert last == "[DONE]"
    assert "".join(part["choices"][0]["text"] for part in parts) == whole
    assert len(whole.split()) > 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    prompt = tokenizer("anna", return_tensors="pt", add_special_tokens=False)["input_ids"]
    tokens = model.generate(prompt, max_new_tokens=12, do_sample=False)[0]
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "anna" + whole
    assert not list(tmp_path.glob("adapter*"))
    assert job in (tmp_path / "README.md").read_text()


def test_a_node_imports_the_libraries_of_its_jobs_for_later_ones(examples: Examples) -> None:
    assert examples.run("language-models/lora.json")["state"] == "succeeded"

    node = examples.system.nodes[1]
    node.until(lambda: "peft, transformers" in node.output, within=120, what="the node has imported the libraries")
