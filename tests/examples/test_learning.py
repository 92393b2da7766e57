"""Tests examples with several optimizers, early stopping and several metrics through the whole server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.examples.conftest import EXAMPLES, Examples
from tests.support.system import System


def job_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((EXAMPLES / name / "job.json").read_text())
    return content


def wait_for_success(system: System, job: str) -> dict[str, Any]:
    result = system.until_settled(job, within=200)
    assert result["state"] == "succeeded", result
    return result


def outputs(system: System, job: str) -> dict[str, bytes]:
    """Returns the output files by their full paths, because several files may have one name."""
    paths = [row["path"] for row in system.get(f"/jobs/{job}/outputs")["data"]]
    return {path: bytes(system.client.get(f"/jobs/{job}/outputs/{path}").content) for path in paths}


def test_two_optimizers_have_the_rates_and_losses_that_their_spec_asks_for(examples: Examples) -> None:
    job = examples.system.submit(job_of("compression"))
    outcome = wait_for_success(examples.system, job)
    result = outputs(examples.system, job)

    logs = [row for row in examples.system.metrics(job) if "aux_loss" in row]
    assert [row["aux_learning_rate"] for row in logs] == [0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125]
    predicted = [json.loads(line) for line in result["predictions.jsonl"].splitlines()]
    assert len(predicted) == 16
    assert {len(row["prediction"]) for row in predicted} == {len(row["label"]) for row in predicted} == {8}
    assert json.loads(result["metrics.json"])["final"]["test_loss"] == outcome["result"]["final"]["test_loss"]


def test_early_stopping_ends_a_job_and_its_figures_are_logged(examples: Examples) -> None:
    job = examples.system.submit(job_of("callbacks"))
    outcome = wait_for_success(examples.system, job)

    rows = examples.system.metrics(job)
    losses = [row["eval_loss"] for row in rows if "eval_loss" in row]
    assert outcome["progress"]["step"] < 480
    assert len(losses) == outcome["progress"]["step"] / 8
    assert all(min(losses[:-3]) - loss <= 0.01 for loss in losses[-3:])
    first = next(row for row in rows if "loss" in row)
    assert first["learning_rate_group_0"] == first["learning_rate"]
    assert {"grad_norm/layers.0", "grad_norm/layers.2", "grad_norm/layers.4"} <= first.keys()


@pytest.mark.matrix
def test_a_job_with_four_metrics_a_cosine_schedule_and_a_test_set_trains(examples: Examples, tmp_path: Path) -> None:
    job = examples.run("four-metrics/job.json")
    assert job["state"] == "succeeded", job
    result = outputs(examples.system, job["id"])

    final = job["result"]["final"]
    figures = {"accuracy", "f1_weighted", "precision_weighted", "recall_weighted", "loss"}
    assert {f"{part}_{name}" for part in ("eval", "test") for name in figures} <= final.keys()
    assert job["result"]["best"]["metric"] == "f1_weighted"
    predicted = [json.loads(line) for line in result["predictions.jsonl"].splitlines()]
    right = [row["prediction"].index(max(row["prediction"])) == row["label"] for row in predicted]
    assert len(right) == 32
    assert sum(right) / 32 == final["test_accuracy"] > 0.8
    assert len(examples.system.get(f"/jobs/{job['id']}/checkpoints")["data"]) >= 2
    assert {"eval/f1_weighted", "test/accuracy", "train/loss"} <= scalars(result, tmp_path).keys()


def scalars(outputs: dict[str, bytes], folder: Path) -> dict[str, list[int]]:
    """Returns the steps of each TensorBoard curve of the only run in these files."""
    runs = {Path(path).parent for path in outputs if path.startswith("tensorboard/") and path.count("/") == 2}
    assert len(runs) == 1, outputs.keys()
    for path, content in outputs.items():
        if Path(path).parent in runs:
            (folder / Path(path).name).write_bytes(content)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [point.step for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_job_may_only_evaluate_or_only_predict(examples: Examples) -> None:
    system = examples.system
    data = {"use": "toy/regression", "args": {"n": 12}}
    evaluates = system.submit({"model": "toy/mlp", "data": {"eval": data}, "metrics": ["mae"], "loss": "l1"})
    predicts = system.submit({"model": "toy/mlp", "data": {"test": data}, "training": {"do_predict": True}})

    final = wait_for_success(system, evaluates)["result"]["final"]
    assert final["eval_loss"] == pytest.approx(final["eval_mae"], rel=1e-5)
    assert [row["eval_mae"] for row in system.metrics(evaluates)] == [final["eval_mae"]]
    assert set(outputs(system, evaluates)) == {"metrics.json", "spec.json"}
    assert "test_loss" in wait_for_success(system, predicts)["result"]["final"]
    result = outputs(system, predicts)
    assert set(result) == {"metrics.json", "predictions.jsonl", "spec.json"}
    assert len(result["predictions.jsonl"].splitlines()) == 12
