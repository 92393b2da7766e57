"""Tests what is special about FSDP 1: its own settings, checkpoints of FSDP 2, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.distributed import scenarios
from tests.trainer.distributed.conftest import Results


def test_shard_grad_op_and_prefetching_do_not_change_the_curve(results: Results, tmp_path: Path) -> None:
    single_run = scenarios.trained(tmp_path, name="curve", text=True, ignore=1)

    for rank_run in results("fsdp 1: shard_grad_op"):
        scenarios.assert_same_run(rank_run, single_run)


def test_an_uneven_number_of_batches_under_fsdp_1_gives_the_losses_of_ddp(results: Results) -> None:
    for rank_run, expected in zip(results("fsdp 1: uneven"), results("uneven"), strict=True):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["losses"] == pytest.approx(expected["losses"], rel=1e-5)


def test_fsdp_1_continues_a_sharded_checkpoint_of_fsdp_2(results: Results, tmp_path: Path) -> None:
    single_run = scenarios.trained(tmp_path, name="whole", text=True)
    first = results("fsdp 1: from pieces")[0]["losses"]

    for rank_run in results("fsdp 1: pieces read"):
        assert "error" not in rank_run, rank_run.get("trace")
        assert first + rank_run["losses"] == pytest.approx(single_run["losses"], rel=1e-5)
        assert rank_run["strategy"] == "Fsdp1"


def test_the_parameter_count_of_a_sharded_model_is_that_of_the_full_model(results: Results) -> None:
    for rank_run in results("fsdp 1: counted"):
        assert rank_run["before"] == rank_run["after"]


@pytest.mark.parametrize(
    ("optim", "says"),
    [
        ("adafactor", "Adafactor needs whole parameters"),
        ("schedule free", "AdamWScheduleFree needs whole parameters, or swaps them for evaluation"),
        ("averaged", "ema averages whole weights, but this strategy shards them"),
        ("merged", "Fsdp1 has sharded the model"),
    ],
)
def test_optimizers_that_need_full_parameters_are_refused_by_name(results: Results, optim: str, says: str) -> None:
    for rank_run in results(f"fsdp 1: {optim}"):
        assert says in rank_run["error"]
