"""Writes the card of an exported model: what it was trained from, with which spec, and how it was evaluated."""

from __future__ import annotations

import json

from footplate.contract.hub import base_model
from service.jobs.fork import document_of
from service.store.row_types import CheckpointRow, JobRow

TASKS = {
    "hf/causal-lm": "text-generation",
    "hf/seq2seq": "text2text-generation",
    "hf/masked-lm": "fill-mask",
    "hf/sequence-classification": "text-classification",
    "hf/token-classification": "token-classification",
    "hf/question-answering": "question-answering",
}
LEFT_OUT = ("env", "secrets", "metadata", "project", "resources", "retry", "priority", "tags", "resume_from")
"""Fields of the spec that say nothing about the model, or that other readers may not see."""


def model_card(job: JobRow, checkpoint: CheckpointRow, *, is_merged: bool) -> str:
    """Returns the text of a README.md for the exported model, with a header that the hub reads."""
    document = document_of(job)
    spec = {name: value for name, value in document.items() if value and name not in LEFT_OUT}
    model = document["model"] or {"use": "", "args": {}}
    is_adapter = model["args"].get("peft") and not is_merged
    is_of_library = model["use"].startswith("hf/")
    front = {
        "library_name": ("peft" if is_adapter else "transformers") if is_of_library else None,
        "pipeline_tag": TASKS.get(model["use"]),
        "base_model": base_model(model["args"]),
    }
    rows = [f"| {name} | {value} |" for name, value in sorted(json.loads(checkpoint.metrics).items())]
    metrics = ["| metric | value |", "|---|---|", *rows] if rows else ["The job was not evaluated."]
    return "\n".join(
        [
            "---", *(f"{name}: {value}" for name, value in front.items() if value), "---", "",
            f"# {job.name or job.id}", "",
            f"The model of job `{job.id}` at step {checkpoint.step}, trained with Footplate.",
            "", "## Evaluation", "", *metrics, "", "## Spec", "",
            "```json", json.dumps(spec, indent=2, ensure_ascii=False), "```", "",
        ]
    )  # fmt: skip
