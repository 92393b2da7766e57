"""Nodes announce what the driver of a real GPU reports, and an attempt sees its granted GPUs only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from footplate.contract.errors import SettingsError
from footplate.contract.host.launch import Order
from footplate.contract.ids import ClaimId, Fence, new_job_id
from footplate.contract.messages import Gpu
from tests.support.factories import make_spec
from tests.support.processes import REPOSITORY
from worker.node.gpus import inventory, visible

LOOK = """
import sys
from footplate.contract.host.launch import Order
from footplate.runtime.run import prepare_process

prepare_process(Order.model_validate_json(sys.argv[1]))

import torch

print([str(torch.cuda.get_device_properties(n).uuid) for n in range(torch.cuda.device_count())])
"""


def seen_with(gpus: list[str], folder: Path) -> str:
    """Returns the GPUs that torch sees in a process that was prepared like a training process."""
    order = Order(
        job=new_job_id(), attempt=1, fence=Fence(1), claim=ClaimId("claim"), spec=make_spec().as_json(), gpus=gpus,
        checkpoints=[], artifacts=folder, data=folder, models=folder, threads=1,
    )  # fmt: skip
    look = [sys.executable, "-c", LOOK, order.model_dump_json()]
    return subprocess.run(look, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()


MACHINE = [Gpu(uuid=f"GPU-{name}", name="H100", memory_mb=81559, capability=(9, 0)) for name in "abcd"]


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        (None, "abcd"), ("2", "c"), ("3, 0", "da"), ("GPU-b,1", "b"), ("", ""), ("-1", ""), ("NoDevFiles", ""),
        ("1,-1,2", "b"),
    ],
)  # fmt: skip
def test_a_node_has_only_the_gpus_that_cuda_visible_devices_leaves(devices: str | None, names: str) -> None:
    assert [gpu.uuid.removeprefix("GPU-") for gpu in visible(MACHINE, devices)] == list(names)


def test_a_visible_device_that_the_machine_does_not_have_stops_the_node() -> None:
    with pytest.raises(SettingsError, match=r"'7'.*0 \(GPU-a\)"):
        visible(MACHINE, "0,7")
    assert visible([], "0") == [], "a machine without GPUs is a node for CPU jobs"


@pytest.mark.gpu
def test_an_attempt_sees_exactly_the_gpu_that_it_was_granted(tmp_path: Path) -> None:
    cards = inventory("")

    assert cards, "NVML lists no GPU on this machine"
    for card in cards:
        assert seen_with([card.uuid], tmp_path) == str([card.uuid.removeprefix("GPU-")])


@pytest.mark.gpu
def test_an_attempt_that_was_granted_no_gpu_sees_none(tmp_path: Path) -> None:
    assert seen_with([], tmp_path) == "[]"
