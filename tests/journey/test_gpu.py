"""Tests jobs on a real GPU: the service, a node that announces its GPU, training and answers."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from tests.support.processes import REPOSITORY
from tests.support.system import JSON, System, assert_whole, standing_system
from tests.support.training import digest

pytestmark = pytest.mark.gpu

GPT: JSON = {
    "model": {"use": "toy/gpt", "args": {"width": 256, "layers": 4, "dropout": 0.1}},
    "data": {"use": "toy/text", "args": {"n": 2048}},
    "resources": {"gpus_per_node": 1},
    "training": {
        "max_steps": 400, "logging_steps": 1, "save_strategy": "steps", "save_steps": 50, "bf16": True,
        "full_determinism": True, "seed": 7, "dataloader_num_workers": 2,
    },
}  # fmt: skip
QLORA: JSON = {
    "trainer": "trl/sft",
    "model": {"use": "hf/causal-lm", "args": {
        "path": "models://tiny-chat", "quantization": "nf4", "dtype": "bfloat16",
        "peft": {"r": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"]},
    }},
    "data": "data://colors/chats.jsonl",
    "resources": {"gpus_per_node": 1},
    "training": {
        "max_steps": 60, "per_device_train_batch_size": 6, "learning_rate": 0.02, "max_length": 32, "bf16": True,
        "logging_steps": 1, "save_strategy": "steps", "save_steps": 10, "optim": "paged_adamw_8bit",
        "full_determinism": True,
    },
}  # fmt: skip
CHAT: JSON = {
    **QLORA,
    "model": {"use": "hf/causal-lm", "args": {"path": "models://tiny-chat"}},
    "training": {
        "max_steps": 100, "per_device_train_batch_size": 6, "learning_rate": 0.01, "max_length": 32, "bf16": True,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    libraries = os.pathsep.join([str(REPOSITORY), str(Path(sys.prefix, "libraries")), os.environ.get("PYTHONPATH", "")])
    folder = tmp_path_factory.mktemp("gpu")
    with standing_system(folder, slots=[1], PYTHONPATH=libraries) as system:
        runpy.run_path(str(REPOSITORY / "examples/fine-tuning/prepare.py"))["prepare"](system.folder)
        yield system


def trained(system: System, spec: JSON) -> str:
    job = system.submit(spec)
    assert system.until_settled(job, within=240)["state"] == "succeeded", system.job(job)
    return job


def weights(system: System, job: str) -> str:
    """Returns a hash of the weights, because the order in the file is not the same in each save."""
    return digest(dict(sorted(load(system.final_weights(job)).items())))


def test_a_job_killed_and_paused_on_a_gpu_ends_bit_equal(system: System) -> None:
    quiet = trained(system, GPT)
    job = system.submit(GPT)
    system.until_checkpoint(job, 50)
    system.kill_training(job)
    system.until(lambda: len(system.attempts(job)) == 2, within=120, what="the job has a second attempt", job=job)
    system.until_checkpoint(job, 150, within=120)
    system.do(job, "pause")
    system.until_state(job, "paused", within=120)
    system.do(job, "resume")

    final_job = system.until_settled(job, within=240)

    assert final_job["state"] == "succeeded", final_job
    assert system.losses(job) == system.losses(quiet)
    assert weights(system, job) == weights(system, quiet)
    assert_whole(system.events(job))
    [node] = system.get("/nodes")["data"]
    reports = [event["data"] for event in system.events(quiet) + system.events(job) if event["kind"] == "system"]
    used = [gpu for report in reports for gpu in report.get("gpus", [])]
    assert {gpu["uuid"] for gpu in used} == {gpu["uuid"] for gpu in node["gpus"]}
    assert all(gpu["memory_mb"] > 0 for gpu in used)


def test_a_batch_that_does_not_fit_into_the_gpu_fails_with_what_would_work(system: System) -> None:
    too_large: JSON = {
        "model": {"use": "toy/gpt", "args": {"vocab_size": 50_304, "context": 4096}},
        "data": {"use": "toy/text", "args": {"n": 512, "length": 4096}},
        "resources": {"gpus_per_node": 1},
        "training": {"max_steps": 2, "per_device_train_batch_size": 512},
    }

    job = system.submit(too_large)
    final_job = system.until_settled(job, within=180)

    assert (final_job["state"], final_job["reason"]) == ("failed", "oom"), final_job
    assert final_job["error"]["code"] == "gpu_out_of_memory", final_job
    assert "per_device_train_batch_size" in final_job["error"]["hint"], final_job


@pytest.mark.skipif(not (find_spec("bitsandbytes") and find_spec("trl")), reason="needs bitsandbytes and trl")
def test_qlora_from_a_spec_killed_and_paused_ends_bit_equal(system: System) -> None:
    quiet = trained(system, QLORA)
    job = system.submit(QLORA)
    system.until_checkpoint(job, 10, within=120)
    system.kill_training(job)
    system.until(lambda: len(system.attempts(job)) == 2, within=120, what="the job has a second attempt", job=job)
    system.until_checkpoint(job, 30, within=120)
    system.do(job, "pause")
    system.until_state(job, "paused", "succeeded", within=120)
    system.do(job, "resume")

    final_job = system.until_settled(job, within=240)

    assert final_job["state"] == "succeeded", final_job
    assert system.losses(job) == system.losses(quiet)
    assert weights(system, job) == weights(system, quiet)


@pytest.mark.skipif(not find_spec("trl"), reason="needs trl")
def test_a_chat_with_a_model_trained_on_the_gpu_is_answered_on_the_gpu(system: System) -> None:
    job = trained(system, CHAT)
    question = [{"role": "user", "content": "what color is the sky ?"}]
    body: dict[str, Any] = {"model": job, "messages": question, "temperature": 0, "max_tokens": 4}

    answer = system.client.post("/v1/chat/completions", json=body)

    assert answer.status_code == 200, answer.text
    assert "blue" in answer.json()["choices"][0]["message"]["content"]
