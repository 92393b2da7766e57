"""Tests that DeepSpeed configs of tutorials train like one process and resume bit-identically."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.distributed import scenarios, tutorials
from tests.trainer.distributed.conftest import Results
from tests.trainer.distributed.scenario_lists import FLOATS, LLAMA, SCENARIOS_OF_ZERO, TUTORIALS, ZERO
from tests.trainer.distributed.test_conformance import assert_ends_with_its_best

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def undisturbed(folder_of: Any) -> dict[str, Any]:
    folder: Path = folder_of("zero", SCENARIOS_OF_ZERO, DS_ACCELERATOR="cpu")
    return scenarios.trained(folder, name="llama-of-one", **LLAMA)


@pytest.mark.parametrize("name", tutorials.TRAINED)
def test_a_deepspeed_config_of_a_tutorial_gives_the_curve_of_one_process(
    results_of_zero: Results, undisturbed: dict[str, Any], name: str
) -> None:
    for rank_run in results_of_zero(name):
        assert "error" not in rank_run, rank_run.get("trace")
        scenarios.assert_same_run(rank_run["whole"], undisturbed)


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_run_with_a_deepspeed_config_of_a_tutorial_resumes_bit_identically(
    results_of_zero: Results, name: str
) -> None:
    for rank_run in results_of_zero(name):
        assert "error" not in rank_run, rank_run.get("trace")
        whole, first, rest = (rank_run[part] for part in ("whole", "first", "rest"))
        assert first["losses"] + rest["losses"] == whole["losses"]
        assert rest["weights"] == whole["weights"]


@pytest.mark.parametrize("name", FLOATS)
def test_a_bf16_config_trains_and_evaluates_in_bf16(results_of_zero: Results, name: str) -> None:
    for rank_run in results_of_zero(name):
        assert "error" not in rank_run, rank_run.get("trace")
        assert all(map(math.isfinite, rank_run["losses"]))
        assert rank_run["evaluated"]["eval_loss"] < rank_run["losses"][0]


@pytest.mark.parametrize("strategy", [item for item in ZERO if item != "zero 0"])
def test_the_best_model_is_loaded_in_bf16(results_of_zero: Results, strategy: str) -> None:
    for rank_run in results_of_zero(f"{strategy}: best in bf16"):
        assert_ends_with_its_best(rank_run)
