"""Tests two processes with torchrun, gloo and a CPU, which train, stop and fail together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.launcher import Place
from footplate.trainer.strategies.choose import choose
from footplate.trainer.strategies.peers import Peers
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.conftest import FolderOf, Results
from tests.trainer.distributed.launch import launched, read


def test_the_ddp_arguments_set_the_options_of_the_process_group(results: Results) -> None:
    for rank_run in results("ddp options"):
        assert rank_run == {
            "find_unused_parameters": False,
            "bucket_cap_mb": 3,
            "broadcast_buffers": False,
            "static_graph": True,
            "backend": "cpu:gloo",
            "timeout": 90,
        }
    for rank_run in results("defaults"):
        assert rank_run["find_unused_parameters"] is True
        assert rank_run["broadcast_buffers"] is True


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("uneven", scenarios.UNEVEN),
        ("means", {"text": True, "ignore": 1, "means": True}),
        ("named", {"named": True}),
        ("split", {}),
    ],
)
def test_ddp_gives_the_loss_curve_of_one_process_on_the_same_global_batch(
    results: Results, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    single_run = scenarios.trained(tmp_path, name="one", **options)

    for rank_run in results(name):
        scenarios.assert_same_run(rank_run, single_run)
        assert rank_run["strategy"] == "Ddp"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("loss of the script", scenarios.UNCOUNTED),
        ("uneven loss of the script", {**scenarios.UNCOUNTED, **scenarios.UNEVEN}),
        ("scaled by the script", scenarios.SAID_SCALED),
        ("not scaled by the script", scenarios.SAID_NOT_SCALED),
    ],
)
def test_ddp_multiplies_a_loss_only_if_it_was_divided_by_the_items_of_all(
    results: Results, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    single_run = scenarios.scaled_by_the_script(tmp_path, **options)

    for rank_run in results(name):
        scenarios.assert_same_run(rank_run, single_run)


def test_averaging_the_loss_per_process_gives_a_different_curve(results: Results) -> None:
    assert results("averaged by each")[0]["losses"] != pytest.approx(results("ddp: curve")[0]["losses"], rel=1e-5)


def test_processes_share_a_stream_without_repeats_and_resume_it(results: Results, tmp_path: Path) -> None:
    single_run = scenarios.trained(tmp_path, name="one", stream=True, samples=91)

    for rank_run in results("stream"):
        assert rank_run["whole"]["seen"] == rank_run["first"]["seen"] + rank_run["rest"]["seen"]
        assert rank_run["rest"]["losses"] == rank_run["whole"]["losses"][3:]
        scenarios.assert_same_run(rank_run["whole"], single_run)
    # An epoch of 91 samples has 12 rounds of up to 8 samples. In its last round, one process has no samples.
    first, second = (item["whole"]["seen"] for item in results("stream"))
    assert (len(first[11]), len(second[11])) == (3, 4)
    epoch = [number for batches in (first[:12], second[:11]) for batch in batches for number in batch]
    assert sorted(epoch) == list(range(91))


@pytest.mark.parametrize(
    ("name", "at"), [("before an uneven round", 5), ("after an uneven round", 6), ("short stream", 3)]
)
def test_a_run_resumes_beside_a_round_in_which_one_process_has_no_batch(results: Results, name: str, at: int) -> None:
    for rank_run in results(name):
        assert rank_run["rest"]["losses"] == rank_run["whole"]["losses"][at:]
        assert rank_run["rest"]["weights"] == rank_run["whole"]["weights"]


def test_a_batch_size_that_does_not_divide_by_the_processes_is_refused(results: Results) -> None:
    for rank_run in results("odd split"):
        assert "a batch of 7 among 2 processes" in rank_run["error"]


def test_evaluation_counts_every_sample_if_processes_have_unequal_last_batches(
    results: Results, tmp_path: Path
) -> None:
    single_run = scenarios.evaluated(tmp_path, name="one", samples=9)

    for rank_run in results("one sample"):
        assert rank_run["labels"] == single_run["labels"]
        for row, expected in zip(rank_run["predictions"], single_run["predictions"], strict=True):
            assert row == pytest.approx(expected, rel=1e-5)
        for which in ("streamed", "kept", "metrics"):
            assert rank_run[which] == pytest.approx(single_run[which], rel=1e-5)
        assert rank_run["kept"]["eval_seen"] == 9


def test_compute_metrics_by_batch_gets_every_batch_and_a_final_call(results: Results, tmp_path: Path) -> None:
    single_run = scenarios.evaluated_by_batch(tmp_path)

    assert single_run["ends"] == [False] * 2 + [True]
    for rank_run in results("evaluated by batch"):
        assert rank_run["seen"] == single_run["seen"]
        assert rank_run["ends"] == [False] * 5 + [True]


def test_predictions_without_tensors_are_gathered_only_on_request(results: Results) -> None:
    for rank_run in results("objects"):
        assert len(rank_run["words"]) == 21
        assert set(rank_run["words"]) <= {f"class {number}" for number in range(4)}
    for rank_run in results("objects refused"):
        assert "a prediction holds a str" in rank_run["error"]
        assert "eval_use_gather_object=True" in rank_run["error"]


@pytest.mark.parametrize("name", ["wrapped", "wrapped in half", "wrapped elsewhere"])
def test_a_model_that_is_trained_twice_is_wrapped_by_ddp_once(results: Results, name: str) -> None:
    """Accelerate is configured for several processes, so its `prepare` would wrap the model again."""
    for rank_run in results(name):
        assert rank_run == {"made": ["Mlp"], "type": "MULTI_CPU"}


def test_a_single_launched_process_does_not_wrap_the_model(tmp_path: Path) -> None:
    launched(tmp_path, [{"run": "wrappers", "name": "alone"}], world=1)

    assert read(tmp_path, 0, 1) == [{"made": [], "type": "MULTI_CPU"}]


def test_gradients_are_synchronized_once_per_step_of_two_micro_batches(results: Results) -> None:
    for rank_run in results("synchronized"):
        assert rank_run == {"steps": 8, "synchronizations": 8}
    for rank_run in results("synchronized in each batch"):
        assert rank_run == {"steps": 8, "synchronizations": 16}


def test_a_full_disk_on_one_process_does_not_end_the_run(results: Results) -> None:
    for rank_run in results("full"):
        assert [step for step, _ in rank_run["told"]] == [3, 6, 8]
        assert rank_run["steps"] == 8


def test_tokens_of_all_processes_are_counted(results: Results) -> None:
    for rank_run in results("tokens"):
        assert rank_run["tokens"] == 8 * 2 * 8 * 16  # steps, micro-batches, samples, characters


@pytest.mark.parametrize(("how", "step"), [("callback", 3), ("signal", 4), ("log", 4)])
def test_a_stop_of_one_process_stops_all_at_the_same_step(results: Results, how: str, step: int) -> None:
    first, second = results(how)

    assert first["steps"] == second["steps"] == step
    assert first["weights"] == second["weights"]
    assert first["files"] == (["checkpoint-4"] if how == "signal" else [])


def test_a_nan_in_one_process_ends_all_with_the_same_error(results: Results) -> None:
    for rank_run in results("nan"):
        assert rank_run["step"] == 4
        assert "NaN or infinite in 2 steps in a row, 3 to 4" in rank_run["error"]


@pytest.mark.parametrize("name", ["find batch size", "background"])
def test_arguments_that_work_only_in_a_single_process_are_refused(results: Results, name: str) -> None:
    for rank_run in results(name):
        assert "2" in rank_run["error"]
        assert {"find batch size": "auto_find_batch_size", "background": "save_in_background"}[name] in rank_run[
            "error"
        ]


def test_processes_that_all_raise_the_same_error_can_continue_training(results: Results) -> None:
    for rank_run in results("everywhere"):
        assert rank_run["error"] == "everywhere"
        assert rank_run["steps"] == 8


def test_a_process_that_fails_during_a_collective_ends_all_with_its_reason(
    results: Results, folder_of: FolderOf
) -> None:
    main, failed = results("on one")

    assert failed["error"] == "Boom: only here"
    assert main["error"] is not None
    assert any("process 1 failed before this one" in note and "Boom: only here" in note for note in main["notes"])
    # torchrun kills the other processes when one ends, so each process must print its error before it ends.
    output = (folder_of("on one") / "output").read_text()
    assert "Boom: only here\n" in output
    assert "process 1 failed before this one, which is 0 of 2: Boom: only here" in output


# The environment variables of a launcher


def test_the_rank_is_read_from_the_environment_of_the_launcher() -> None:
    reports = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}

    assert Place.here(environment=reports) == Place(3, 4, 1, is_launched=True)
    assert Place.here(environment={}) == Place()
    del reports["LOCAL_RANK"]
    assert Place.here(1, environment=reports) == Place(3, 4, 1, is_launched=True)


def test_a_process_takes_the_visible_gpu_with_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert Place(3, 4, 3).gpu == torch.device("cuda", 3)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert Place(3, 4, 3).gpu == torch.device("cuda", 0)


def test_cpu_tensors_use_gloo_and_device_tensors_use_nccl() -> None:
    peers = object.__new__(Peers)
    peers.group, peers._group = "NCCL", "gloo"

    assert peers.group_of(torch.ones(1)) == "gloo"
    assert peers.group_of(torch.ones(1, device="meta")) == "NCCL"


def test_the_launchers_dynamo_backend_is_refused_for_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")

    assert scenarios.trained(tmp_path, name="compiled", max_steps=1)["steps"] == 1
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NotAvailableYet, match="ACCELERATE_DYNAMO_BACKEND=EAGER"):
        choose(TrainingArguments("out"))


def test_use_cpu_can_be_set_by_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not TrainingArguments("out").use_cpu
    for name, value in {"ACCELERATE_USE_CPU": "True", "ACCELERATE_DYNAMO_BACKEND": "NO"}.items():
        monkeypatch.setenv(name, value)

    assert TrainingArguments("out").use_cpu
    choose(TrainingArguments("out"))


def test_missing_variables_of_a_launcher_are_named() -> None:
    with pytest.raises(ValueError, match=r"LOCAL_RANK.*but.*WORLD_SIZE.*MASTER_ADDR.*MASTER_PORT"):
        Place.here(environment={"LOCAL_RANK": "1", "RANK": "1"})


@pytest.mark.parametrize("argument", ["save_on_each_node", "log_on_each_node"])
def test_save_and_log_on_each_node_apply_to_the_first_rank_of_a_node(
    monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    from footplate.trainer.arguments import TrainingArguments

    reports = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in reports.items():
        monkeypatch.setenv(name, value)

    does = {is_on: TrainingArguments("out", **{argument: is_on}) for is_on in (False, True)}  # type: ignore[arg-type]

    which = "should_save" if argument == "save_on_each_node" else "should_log"
    assert [getattr(does[is_on], which) for is_on in (False, True)] == [False, True]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fsdp": True, "fsdp_config": {"version": 2}}, "fsdp shards a model over processes, but there is only one"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "deepspeed shards a model over processes"),
    ],
)
def test_sharding_strategies_are_refused_for_one_process(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenarios.trained(tmp_path, name="alone", **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fsdp": True, "deepspeed": {}}, None),
        ({"fsdp": True, "deepspeed": {"a": 1}}, "fsdp and deepspeed both shard"),
        ({"fsdp_config": {"version": 1}}, "fsdp_config has options of FSDP, but fsdp is off"),
        ({"fsdp": "full_shard", "auto_find_batch_size": True}, "auto_find_batch_size splits a batch in one process"),
    ],
)
def test_arguments_that_exclude_each_other_are_both_named(values: dict[str, Any], message: str | None) -> None:
    from footplate.trainer.arguments import TrainingArguments

    if message is None:
        TrainingArguments("out", **values)
        return
    with pytest.raises(ValueError, match=message):
        TrainingArguments("out", **values)
