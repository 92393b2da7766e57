"""Tests sharded models with adapters: training, resumes, and loading in one process."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.components import toy
from footplate.trainer import adapters
from footplate.trainer import checkpoint as files
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.conftest import FolderOf, Results

CUT = ["fsdp 2", "fsdp 2 in pieces", "fsdp 1"]


@pytest.mark.parametrize("strategy", CUT)
def test_adapters_of_a_sharded_model_resume_bit_identically(results: Results, strategy: str) -> None:
    whole_copies = results("ddp: adapters")
    for rank_run, expected in zip(results(f"{strategy}: adapters"), whole_copies, strict=True):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["whole"]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert rank_run["first"]["losses"] + rank_run["rest"]["losses"] == rank_run["whole"]["losses"]
        assert rank_run["rest"]["weights"] == rank_run["whole"]["weights"]


@pytest.mark.parametrize("strategy", ["zero 2", pytest.param("zero 3", marks=pytest.mark.soak)])
def test_checkpoints_of_adapter_weights_only_resume_bit_identically_in_deepspeed(
    results: Results, strategy: str
) -> None:
    for rank_run in results(f"{strategy}: adapters alone"):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["first"]["losses"] + rank_run["rest"]["losses"] == rank_run["whole"]["losses"]
        assert rank_run["rest"]["weights"] == rank_run["whole"]["weights"]


@pytest.mark.parametrize("strategy", CUT)
def test_one_process_loads_adapters_that_two_processes_have_saved(
    results: Results, folder_of: FolderOf, strategy: str
) -> None:
    state: dict[str, Any] = results(f"{strategy}: adapters")[0]["first"]["weights"]
    checkpoint = folder_of(f"{strategy}: adapters") / f"{strategy}-lora" / "checkpoint-2"
    model = scenarios.adapted(toy.gpt(layers=2, heads=2, width=16, context=16))

    if files.is_sharded(checkpoint):
        from footplate.trainer.strategies import shards

        shards.load_model(model, checkpoint)
    else:
        assert {"adapter_model.safetensors", adapters.REST} <= {path.name for path in checkpoint.iterdir()}
        files.load_weights(model, checkpoint)

    weights = {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()}
    assert any("lora_B" in name for name in state)
    assert any("norm_feed" in name for name in state), "weights that are trained beside the adapters are saved too"
    assert {name: weights[name] for name in state} == state


def test_ddp_merges_adapters_in_the_main_process_and_fsdp_refuses_to_merge(results: Results) -> None:
    assert [item["files"] for item in results("ddp: merged")] == [["model.safetensors"]] * 2
    for rank_run in results("fsdp 2: merged"):
        assert "Fsdp has sharded the model" in rank_run["error"]
        assert "call save_merged_model there" in rank_run["error"]
