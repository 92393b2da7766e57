"""Tests a model that is split over processes by a script, or by transformers when it is loaded.

What all strategies have in common is in test_conformance.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.strategies.choose import choose
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.conftest import FolderOf, Results


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, Any]:
    """Returns the results of the same model in one process."""
    scenarios.a_llama(tmp_path)
    return scenarios.trained(tmp_path, name="whole", text=True, llama=True, max_steps=4)


@pytest.mark.parametrize("scenario", ["loaded", pytest.param("four: loaded", marks=pytest.mark.matrix)])
def test_a_tensor_parallel_model_of_transformers_trains_like_a_full_one(
    scenario: str, whole: dict[str, Any], results: Results
) -> None:
    """Two processes compute one batch together. Four processes form two such groups, which shard by FSDP."""
    for item in results(scenario):
        assert "error" not in item, item.get("trace")
        scenarios.assert_same_run(item["whole"], whole)
        assert item["first"]["losses"] + item["rest"]["losses"] == item["whole"]["losses"]
        assert item["first"]["norms"] + item["rest"]["norms"] == item["whole"]["norms"]
        assert item["rest"]["weights"] == item["whole"]["weights"]
        assert (item["whole"]["sizes"], item["whole"]["flos"]) == ([2, 16], whole["flos"])


def test_the_tensor_parallel_size_is_taken_from_the_loaded_model(results: Results, whole: dict[str, Any]) -> None:
    for rank_run in results("loaded, nothing said"):
        scenarios.assert_same_run(rank_run, whole)
        assert (rank_run["strategy"], rank_run["sizes"]) == ("TensorParallel", [2, 16])


def test_a_tensor_parallel_model_is_saved_like_a_full_one(results: Results, folder_of: FolderOf) -> None:
    main, other = results("loaded and written")
    parts = folder_of("loaded and written")

    assert "error" not in main, main.get("trace")
    assert {"model.safetensors", "config.json", "optimizer.pt"} <= set(main["files"])
    assert (main["commits"], other["commits"]) == ([4], [])
    assert not json.loads((parts / "written" / "config.json").read_text()).get("distributed_config")
    assert scenarios.trained(parts, name="written", text=True, llama=True, resume=True, max_steps=5)["steps"] == 5


def test_tensor_parallelism_works_in_half_precision(results: Results, whole: dict[str, Any]) -> None:
    for rank_run in results("in bf16"):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["losses"] == pytest.approx(whole["losses"], rel=2e-2)
        assert rank_run["losses"] != pytest.approx(whole["losses"], rel=1e-6)


def test_ranks_of_a_tensor_parallel_group_read_the_same_samples(results: Results) -> None:
    """All ranks of a group read the same samples, although their own samplers draw different orders."""
    first, other = results("own sampler")

    assert "error" not in first, first.get("trace")
    assert first["losses"] == other["losses"]
    assert first["losses"][0] > first["losses"][-1] + 0.05


def test_different_data_within_a_group_is_refused_at_the_first_batch(results: Results) -> None:
    for rank_run in results("random data per rank"):
        assert "DatasetError: processes 0 to 1 compute every batch together, but have read" in rank_run["error"]


def test_tokens_of_a_tensor_parallel_group_are_counted_once(results: Results, tmp_path: Path) -> None:
    single_run = scenarios.counted_tokens(tmp_path, include_num_input_tokens_seen="all")

    assert results("tokens in parts") == [single_run, single_run]


@pytest.mark.matrix
def test_two_tensor_parallel_groups_with_fsdp_give_the_curve_of_one_process(results: Results, tmp_path: Path) -> None:
    single_run = scenarios.trained(tmp_path, name="curve", text=True, ignore=1)
    evaluated = scenarios.evaluated(tmp_path, name="evaluated")
    scenarios.trained(tmp_path, name="from-one", text=True, stop_at=3)
    rest = scenarios.trained(tmp_path, name="from-one", text=True, resume=True)

    for rank_run in results("four: curve"):
        scenarios.assert_same_run(rank_run, single_run)
    for rank_run in results("four: evaluated"):
        assert rank_run["labels"] == evaluated["labels"]
        assert rank_run["streamed"] == pytest.approx(evaluated["streamed"], rel=1e-5)
    for rank_run in results("four: from one"):
        assert rank_run["losses"] == pytest.approx(rest["losses"], rel=1e-5)


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("adapters in parts", "has adapters, which need whole weight matrices"),
        ("whole", "a GptForCausalLM, is whole: load it with from_pretrained"),
        pytest.param("four: unsharded", "the model is not sharded: set fsdp=True", marks=pytest.mark.matrix),
        pytest.param("four: sharded twice", "is already sharded, and fsdp would shard it", marks=pytest.mark.matrix),
    ],
)
def test_a_model_that_is_not_sharded_as_requested_is_refused_by_all_ranks(
    scenario: str, message: str, results: Results
) -> None:
    for item in results(scenario):
        assert message in item["error"]


LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        ({"tp_size": 4}, {}, "tp_size 4, which needs 4 processes, but 2 are running: start 4"),
        ({"tp_size": 2}, {"fp16": True}, "fp16's loss scale is not shared among its processes: use bf16"),
        ({"tp_size": 2}, {"deepspeed": {"train_batch_size": "auto"}}, "deepspeed shards the model in another way"),
        ({"tp_size": 2}, {"fsdp": True}, "fsdp has no other processes to shard over: give dp_shard_size too"),
        (
            {"tp_size": 2, "dp_shard_size": 1},
            {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}},
            "checkpoints cannot be sharded with tp_size",
        ),
        ({"tp_size": 2}, {"fsdp": True, "fsdp_config": {"version": 1}}, "FSDP 1 does not support split parameters"),
        ({"dp_shard_size": 2}, {}, "which needs FSDP, but fsdp is not set: set fsdp=True"),
        ({"tpsize": 2}, {}, "parallelism_config has no size 'tpsize': did you mean 'tp_size'"),
        ({"tp_size": 0}, {}, "tp_size is 0, but a size is 1 or more"),
        ({"dp_replicate_size": 2, "tp_size": 2}, {}, "cannot be used with pure data parallelism"),
    ],
)
def test_impossible_parallelism_sizes_are_refused_at_the_start(
    config: dict[str, int], values: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ValueError, match=message):
        choose(TrainingArguments("out", use_cpu=True, parallelism_config=config, **values))


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        ({"sp_size": 2}, {}, "has sp_size 2, which needs DeepSpeed and is not supported"),
        ({"dp_replicate_size": 2, "dp_shard_size": 2}, {"fsdp": True}, "Hybrid sharding is not supported"),
    ],
)
def test_unsupported_kinds_of_parallelism_are_refused_by_name(
    config: dict[str, int], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(NotAvailableYet, match=message):
        choose(TrainingArguments("out", use_cpu=True, parallelism_config=config, **values))


def test_an_accelerate_parallelism_config_is_accepted_and_stored_as_sizes() -> None:
    accelerate = pytest.importorskip("accelerate")

    args = TrainingArguments("out", parallelism_config=accelerate.ParallelismConfig(tp_size=2))

    assert args.parallelism_config.tp_size == 2
    assert args.to_dict()["parallelism_config"]["tp_size"] == 2
    assert TrainingArguments(**args.to_dict()).parallelism_config.tp_size == 2
