"""The examples about how a model learns, through the whole server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import load
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from tests.examples.conftest import EXAMPLES, Examples
from tests.support.system import System
from worker.components.toy import regression
from worker.components.toy_compression import compression
from worker.trainer.schedules import get_cosine_schedule_with_warmup
from worker.trainer.trainer import set_seed


def job_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXAMPLES / name / "job.json").read_text())
    return found


def done(system: System, job: str) -> dict[str, Any]:
    found = system.until_settled(job, within=200)
    assert found["state"] == "succeeded", found
    return found


def outputs(system: System, job: str) -> dict[str, bytes]:
    """By their paths, which a file of the same name may share the end of."""
    paths = [one["path"] for one in system.get(f"/jobs/{job}/outputs")["data"]]
    return {path: bytes(system.client.get(f"/jobs/{job}/outputs/{path}").content) for path in paths}


def compressed_by_hand() -> nn.Module:
    """The loop of examples/compression as one would write it without a Trainer."""
    set_seed(42)
    model, data = compression(channels=4), regression(n=256)
    set_seed(42)
    model.train()
    inner = [value for name, value in model.named_parameters() if not name.endswith(".quantiles")]
    outer = [model.bottleneck.quantiles]
    main, aux = torch.optim.Adam(inner, lr=0.01), torch.optim.Adam(outer, lr=0.05)
    schedules = get_cosine_schedule_with_warmup(main, 5, 60), torch.optim.lr_scheduler.StepLR(aux, 20, 0.5)
    for step, (first, second) in enumerate(pairs_of_batches(data, epochs=4)):
        if step == 60:
            break
        for batch in (first, second):
            (model(batch["x"])["loss"] / 2).backward(inputs=inner)
        clip_grad_norm_(inner, 1.0)
        main.step()
        model.aux_loss().backward(inputs=outer)
        clip_grad_norm_(outer, 1.0)
        aux.step()
        for schedule in schedules:
            schedule.step()
        model.zero_grad()
    return model


def pairs_of_batches(data: Any, epochs: int) -> Iterator[Any]:
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(42 + epoch)).tolist()
        batches = iter(DataLoader(data, batch_size=8, sampler=order))
        yield from zip(batches, batches, strict=True)


def test_two_optimizers_give_the_weights_of_the_loop_written_by_hand(examples: Examples) -> None:
    job = examples.system.submit(job_of("compression"))
    ended = done(examples.system, job)
    found = outputs(examples.system, job)

    ours, by_hand = load(found["model.safetensors"]), compressed_by_hand().state_dict()
    assert {name: value.tolist() for name, value in ours.items()} == {
        name: value.tolist() for name, value in by_hand.items()
    }
    logs = [row for row in examples.system.metrics(job) if "aux_loss" in row]
    assert [row["aux_learning_rate"] for row in logs] == [0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125]
    predicted = [json.loads(line) for line in found["predictions.jsonl"].splitlines()]
    assert len(predicted) == 16
    assert {len(row["prediction"]) for row in predicted} == {len(row["label"]) for row in predicted} == {8}
    assert json.loads(found["metrics.json"])["final"]["test_loss"] == ended["result"]["final"]["test_loss"]
