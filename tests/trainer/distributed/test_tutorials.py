"""Tests that DeepSpeed configs of tutorials train like one process and resume bit-identically."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.trainer.distributed import scenarios, tutorials
from tests.trainer.distributed.conftest import FolderOf, Results
from tests.trainer.distributed.scenario_lists import FLOATS, LLAMA, TUTORIALS, ZERO
from tests.trainer.distributed.test_conformance import assert_ends_with_its_best

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def undisturbed(folder_of: FolderOf) -> dict[str, Any]:
    return scenarios.trained(folder_of("zero 2: floats"), name="llama-of-one", **LLAMA)


@pytest.mark.parametrize("name", tutorials.TRAINED)
def test_a_deepspeed_config_of_a_tutorial_gives_the_curve_of_one_process(
    results: Results, undisturbed: dict[str, Any], name: str
) -> None:
    for rank_run in results(name):
        assert "error" not in rank_run, rank_run.get("trace")
        scenarios.assert_same_run(rank_run["whole"], undisturbed)


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_run_with_a_deepspeed_config_of_a_tutorial_resumes_bit_identically(results: Results, name: str) -> None:
    for rank_run in results(name):
        assert "error" not in rank_run, rank_run.get("trace")
        whole, first, rest = (rank_run[part] for part in ("whole", "first", "rest"))
        assert first["losses"] + rest["losses"] == whole["losses"]
        assert rest["weights"] == whole["weights"]


@pytest.mark.parametrize("name", FLOATS)
def test_a_bf16_config_trains_and_evaluates_in_bf16(results: Results, name: str) -> None:
    for rank_run in results(name):
        assert "error" not in rank_run, rank_run.get("trace")
        assert all(map(math.isfinite, rank_run["losses"]))
        assert rank_run["evaluated"]["eval_loss"] < rank_run["losses"][0]


@pytest.mark.parametrize("strategy", [item for item in ZERO if item != "zero 0"])
def test_the_best_model_is_loaded_in_bf16(results: Results, strategy: str) -> None:
    for rank_run in results(f"{strategy}: best in bf16"):
        assert_ends_with_its_best(rank_run)
