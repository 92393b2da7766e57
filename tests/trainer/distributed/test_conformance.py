"""Every strategy gives the results of one process on the same global batch.

Curves are equal, resumes are exact, and checkpoints continue on another number of processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.distributed import scenarios
from tests.trainer.distributed.conftest import FolderOf, Results
from tests.trainer.distributed.scenario_lists import PARTS, SWAPPED, ZERO

SHARDING = [
    "fsdp 2", "fsdp 2 in pieces",
    # test_fsdp1.py and test_adapters.py test a curve and exact resumes under FSDP 1 in each run.
    pytest.param("fsdp 1", marks=pytest.mark.matrix),
]  # fmt: skip
OF_ZERO = [pytest.param(strategy, marks=pytest.mark.soak) for strategy in ZERO]
strategies = pytest.mark.parametrize("strategy", ["ddp", *SHARDING, *PARTS, *OF_ZERO])
take_adapters = pytest.mark.parametrize("strategy", ["ddp", *SHARDING, *OF_ZERO])
KINDS = {
    "ddp": "Ddp", "fsdp 2": "Fsdp", "fsdp 2 in pieces": "Fsdp", "fsdp 1": "Fsdp1", "tensor parallel": "TensorParallel",
    **dict.fromkeys(ZERO, "DeepSpeed"),
}  # fmt: skip
WHOLE = {"manifest.json", "model.safetensors", "optimizer.pt"}
PIECES = {"manifest.json", "pytorch_model_fsdp_0", "optimizer_0", "optimizer_groups.pt"}
BESIDE = {
    "scheduler.pt",
    "rng_state_0.pth",
    "rng_state_1.pth",
    "trainer_state.json",
    "training_args.bin",
    "training_args.json",
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("one")
    return {
        "curve": scenarios.trained(folder, name="curve", text=True, ignore=1),
        "whole": scenarios.trained(folder, name="whole", text=True),
        "evaluated": scenarios.evaluated(folder, name="evaluated"),
    }


@strategies
def test_every_strategy_gives_the_loss_curve_of_one_process(
    results: Results, undisturbed: dict[str, Any], strategy: str
) -> None:
    for rank_run in results(f"{strategy}: curve"):
        scenarios.assert_same_run(rank_run, undisturbed["curve"])
        assert rank_run["strategy"] == KINDS[strategy]
        assert rank_run["events"] == undisturbed["curve"]["events"]


@strategies
def test_a_run_resumed_within_an_epoch_is_bit_identical(results: Results, strategy: str) -> None:
    for rank_run in results(f"{strategy}: resumed"):
        assert "error" not in rank_run, rank_run.get("trace")
        whole, first, rest = (rank_run[part] for part in ("whole", "first", "rest"))
        assert first["losses"] + rest["losses"] == whole["losses"]
        assert first["norms"] + rest["norms"] == whole["norms"]
        assert rest["weights"] == whole["weights"]


def test_training_continues_with_the_training_weights_after_an_evaluation(results: Results, tmp_path: Path) -> None:
    single_run = scenarios.trained(tmp_path, name="one", **SWAPPED)

    for rank_run in results("fsdp 2: swapped"):
        scenarios.assert_same_run(rank_run, single_run)


@pytest.mark.parametrize(
    "name", ["fsdp 1: adagrad", "fsdp 2: adagrad", "fsdp 2: adafactor", "fsdp 2 in pieces: adafactor"]
)
def test_optimizers_with_another_state_than_adamw_are_sharded_and_resumed(
    results: Results, tmp_path: Path, name: str
) -> None:
    single_run = scenarios.trained(tmp_path, name="one", optim=name.split(": ")[1])

    for rank_run in results(name):
        scenarios.assert_same_run(rank_run["whole"], single_run)
        assert rank_run["rest"]["losses"] == rank_run["whole"]["losses"][4:]
        assert rank_run["rest"]["weights"] == rank_run["whole"]["weights"]


@strategies
def test_a_checkpoint_of_two_processes_continues_in_one_process(
    results: Results, folder_of: FolderOf, undisturbed: dict[str, Any], strategy: str
) -> None:
    first = results(f"{strategy}: for one")[0]

    rest = scenarios.trained(folder_of(f"{strategy}: for one"), name=f"{strategy}-for-one", text=True, resume=True)

    assert first["losses"] + rest["losses"] == pytest.approx(undisturbed["whole"]["losses"], rel=1e-5)
    assert rest["strategy"] == "Single"
    for name, values in rest["weights"].items():
        assert values == pytest.approx(undisturbed["whole"]["weights"][name], rel=1e-3, abs=2e-5)


@strategies
def test_a_checkpoint_of_one_process_continues_in_two_processes(
    results: Results, undisturbed: dict[str, Any], strategy: str
) -> None:
    for rank_run in results(f"{strategy}: from one"):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["losses"] == pytest.approx(undisturbed["whole"]["losses"][3:], rel=1e-5)
        assert rank_run["rates"] == undisturbed["whole"]["rates"][3:]
        for name, values in rank_run["weights"].items():
            assert values == pytest.approx(undisturbed["whole"]["weights"][name], rel=1e-3, abs=2e-5)


@strategies
def test_evaluating_and_predicting_see_every_sample_once(
    results: Results, undisturbed: dict[str, Any], strategy: str
) -> None:
    item = undisturbed["evaluated"]
    for rank_run in results(f"{strategy}: evaluated"):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["labels"] == item["labels"]
        for which in ("streamed", "kept", "metrics"):
            assert rank_run[which] == pytest.approx(item[which], rel=1e-5)


@strategies
def test_the_best_model_is_loaded_at_the_end(results: Results, strategy: str) -> None:
    for rank_run in results(f"{strategy}: best"):
        assert_ends_with_its_best(rank_run)


@take_adapters
def test_the_best_adapters_are_loaded_at_the_end(results: Results, strategy: str) -> None:
    for rank_run in results(f"{strategy}: best adapters"):
        assert_ends_with_its_best(rank_run)


def assert_ends_with_its_best(results: dict[str, Any]) -> None:
    assert "error" not in results, results.get("trace")
    assert results["best"] == 2
    assert results["evaluations"][0] > results["evaluations"][1] + 1e-4
    assert results["again"] == pytest.approx(results["evaluations"][0], abs=1e-6)
    assert results["kept"] == ["checkpoint-2", "checkpoint-4"]


@strategies
def test_every_sample_gets_a_generated_text(results: Results, strategy: str) -> None:
    """The texts of one process are not expected, because its sums have another order and the texts diverge."""
    first, second = results(f"{strategy}: generated")
    assert "error" not in first, first.get("trace")
    assert first["texts"] == second["texts"]
    assert len(first["texts"]) == 9


@pytest.mark.parametrize("strategy", SHARDING)
def test_generated_texts_and_counted_operations_are_those_of_ddp(results: Results, strategy: str) -> None:
    sharded, whole = results(f"{strategy}: generated")[0], results("ddp: generated")[0]
    assert sharded["texts"] == whole["texts"]
    assert sharded["flos"] == whole["flos"] > 0


@strategies
def test_checkpoint_files_have_the_names_of_transformers_and_a_full_model(results: Results, strategy: str) -> None:
    main, other = results(f"{strategy}: written")

    assert "error" not in main, main.get("trace")
    assert set(main["files"]) == (PIECES if "pieces" in strategy else WHOLE) | BESIDE
    assert "model.safetensors" in main["whole"]
    assert main["told"] == other["told"] == ["checkpoint-4", "checkpoint-8"]
    assert (main["commits"], other["commits"], other["lines"]) == ([4, 8], [], 0)
