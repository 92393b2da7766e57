"""Nodes announce what the driver of a real GPU reports, and an attempt sees its granted GPUs only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from footplate.contract.host.launch import Order
from footplate.contract.ids import ClaimId, Fence, new_job_id
from tests.support.factories import make_spec
from tests.support.processes import REPOSITORY
from worker.node.gpus import inventory

LOOK = """
import sys
from footplate.contract.host.launch import Order
from footplate.runtime.run import prepare_process

prepare_process(Order.model_validate_json(sys.argv[1]))

import torch

print([str(torch.cuda.get_device_properties(n).uuid) for n in range(torch.cuda.device_count())])
"""


def seen_with(gpus: list[str], folder: Path) -> str:
    """Returns what torch sees in a process that was prepared as training is."""
    order = Order(
        job=new_job_id(), attempt=1, fence=Fence(1), claim=ClaimId("claim"), spec=make_spec().as_json(), gpus=gpus,
        checkpoints=[], artifacts=folder, data=folder, models=folder, threads=1,
    )  # fmt: skip
    look = [sys.executable, "-c", LOOK, order.model_dump_json()]
    return subprocess.run(look, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.gpu
def test_an_attempt_sees_exactly_the_gpu_that_it_was_granted(tmp_path: Path) -> None:
    cards = inventory("")

    assert cards, "NVML names no GPU here"
    for card in cards:
        assert seen_with([card.uuid], tmp_path) == str([card.uuid.removeprefix("GPU-")])


@pytest.mark.gpu
def test_an_attempt_that_was_granted_no_gpu_sees_none(tmp_path: Path) -> None:
    assert seen_with([], tmp_path) == "[]"
