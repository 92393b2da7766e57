"""Tests samples that are split over processes. The results equal those of a single process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.strategies.choose import choose
from footplate.trainer.strategies.context_parallel import cut, own_positions
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.conftest import FolderOf, Results
from tests.trainer.distributed.scenario_lists import LLAMA, ODD
from tests.trainer.distributed.test_tensor_parallel import LAUNCHED


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Returns the results of the same runs in one process, by name."""
    folder = tmp_path_factory.mktemp("alone")
    scenarios.a_llama(folder)
    return {
        "curve": scenarios.trained(folder, name="curve", text=True, ignore=1),
        "odd": scenarios.trained(folder, name="odd", **ODD),
        "smoothed": scenarios.trained(folder, name="smoothed", label_smoothing_factor=0.1, **ODD),
        "whole": scenarios.trained(folder, name="whole", text=True),
        "llama": scenarios.trained(folder, name="llama", **LLAMA),
    }


@pytest.mark.parametrize("scenario", ["curve", "odd", "smoothed"])
def test_context_parallelism_gives_the_loss_curve_of_one_process(
    scenario: str, results: Results, alone: dict[str, dict[str, Any]]
) -> None:
    """Covers uneven lengths, activation checkpointing, and models that compute their own loss."""
    for rank_run in results(f"cp: {scenario}"):
        scenarios.assert_same_run(rank_run, alone[scenario])
        assert (rank_run["strategy"], rank_run["sizes"]) == ("ContextParallel", [2, 16])
        assert rank_run["flos"] == alone[scenario]["flos"]


def test_a_grouped_query_model_trains_like_in_one_process_and_resumes(
    results: Results, alone: dict[str, dict[str, Any]]
) -> None:
    for rank_run in results("cp: llama"):
        assert "error" not in rank_run, rank_run.get("trace")
        scenarios.assert_same_run(rank_run["whole"], alone["llama"])
        _assert_resumed(rank_run)


def test_a_context_parallel_run_resumed_within_an_epoch_is_bit_identical(results: Results) -> None:
    for rank_run in results("cp: resumed"):
        assert "error" not in rank_run, rank_run.get("trace")
        _assert_resumed(rank_run)


def _assert_resumed(results: dict[str, Any]) -> None:
    assert results["first"]["losses"] + results["rest"]["losses"] == results["whole"]["losses"]
    assert results["first"]["norms"] + results["rest"]["norms"] == results["whole"]["norms"]
    assert results["rest"]["weights"] == results["whole"]["weights"]


def test_context_parallelism_works_in_half_precision(results: Results, alone: dict[str, dict[str, Any]]) -> None:
    for rank_run in results("cp: in bf16"):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["losses"] == pytest.approx(alone["llama"]["losses"], rel=2e-2)
        assert rank_run["losses"] != pytest.approx(alone["llama"]["losses"], rel=1e-7)


def test_a_checkpoint_continues_with_and_without_context_parallelism(
    results: Results, folder_of: FolderOf, alone: dict[str, dict[str, Any]]
) -> None:
    first = results("cp: for one")[0]

    rest = scenarios.trained(folder_of("cp: for one"), name="cp-for-one", text=True, resume=True)

    assert first["losses"] + rest["losses"] == pytest.approx(alone["whole"]["losses"], rel=1e-5)
    for rank_run in results("cp: from one"):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["losses"] == pytest.approx(alone["whole"]["losses"][3:], rel=1e-5)


def test_an_evaluation_reads_full_samples_once_and_the_best_model_is_loaded(results: Results, tmp_path: Path) -> None:
    single_run = scenarios.best(tmp_path, name="best", text=True)

    for rank_run in results("cp: best"):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["evaluations"] == pytest.approx(single_run["evaluations"], rel=1e-5)
        assert (rank_run["best"], rank_run["kept"]) == (single_run["best"], single_run["kept"])
        assert rank_run["again"] == pytest.approx(single_run["again"], rel=1e-5)


def test_tokens_of_a_context_parallel_group_are_counted_once(results: Results, tmp_path: Path) -> None:
    single_run = scenarios.counted_tokens(tmp_path, include_num_input_tokens_seen="all")

    assert results("cp: tokens") == [single_run, single_run]


def test_adapters_train_under_context_parallelism(results: Results) -> None:
    first, other = results("cp: adapters")

    assert "error" not in first, first.get("trace")
    assert (first["losses"], first["weights"]) == (other["losses"], other["weights"])


@pytest.mark.matrix
def test_four_processes_form_two_groups_of_two_or_one_group_of_four(
    results: Results, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    uneven = scenarios.trained(tmp_path, name="uneven", text=True, **scenarios.UNEVEN)

    for rank_run in results("four: cp: curve"):
        scenarios.assert_same_run(rank_run, alone["curve"])
        assert rank_run["sizes"] == [2, 16]
    for rank_run in results("four: cp: uneven"):
        scenarios.assert_same_run(rank_run, uneven)
    for rank_run in results("four: cp: of four"):
        scenarios.assert_same_run(rank_run, alone["odd"])


def test_attention_that_sees_only_local_tokens_changes_the_curve_and_is_refused(
    results: Results, alone: dict[str, dict[str, Any]]
) -> None:
    for rank_run in results("cp: apart"):
        assert "error" not in rank_run, rank_run.get("trace")
        with pytest.raises(AssertionError):
            scenarios.assert_same_run(rank_run, alone["curve"])
    for rank_run in results("cp: apart, rehearsed"):
        assert "LogitsForCausalLM computes logits that differ" in rank_run["error"]


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("mixes positions", "computes logits that differ by"),
        ("adds to the loss", "the loss of AddsForCausalLM is not the cross entropy of the next token"),
        ("own loss function", "the Trainer has its own compute_loss_func"),
        ("random data per rank", "processes 0 to 1 compute every batch together, but have read"),
        ("not a language model", "the model's class name, Mlp, does not end with ForCausalLM"),
        ("named optimizers", "several named optimizers have one each"),
    ],
)
def test_a_model_that_context_parallelism_would_change_is_refused_by_all_ranks(
    scenario: str, message: str, results: Results
) -> None:
    for rank_run in results(f"cp: {scenario}"):
        assert message in rank_run["error"]


@pytest.mark.parametrize(("size", "length"), [(2, 16), (2, 13), (3, 5), (4, 1)])
def test_every_rank_gets_a_piece_of_the_front_and_a_piece_of_the_back(size: int, length: int) -> None:
    tokens = torch.arange(1, length + 1).expand(2, -1)

    pieces = [cut({"input_ids": tokens, "labels": tokens}, rank, size) for rank in range(size)]

    places = torch.cat([piece.positions for piece in pieces])
    assert sorted(places.tolist()) == list(range(len(places)))
    assert all(sum(piece.positions.tolist()) == sum(pieces[0].positions.tolist()) for piece in pieces)
    ahead = {int(t): int(n) for p in pieces for t, n in zip(p.inputs["input_ids"][0], p.labels[0], strict=True) if t}
    assert ahead == {index: index + 1 if index < length else -100 for index in range(1, length + 1)}
    assert all(int(piece.inputs["position_ids"].max()) < length for piece in pieces)
    assert {int(piece.count) for piece in pieces} == {2 * (length - 1)}
    assert own_positions(0, size, 1).tolist() == [0, 2 * size - 1]


TOKENS = torch.arange(8).expand(2, -1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"attention_mask": torch.tensor([[0] + [1] * 7] * 2)}, "in which zeros stand before ones"),
        ({"attention_mask": torch.tensor([[1, 0] + [1] * 6] * 2)}, "in which zeros stand before ones"),
        (
            {"attention_mask": torch.tensor([[1] * 6 + [0] * 2] * 2)},
            "labels are not -100 where attention_mask marks padding",
        ),
        ({"position_ids": torch.tensor([[0, 1, 2, 3] * 2] * 2)}, "position_ids that do not count up from 0"),
        ({"token_type_ids": TOKENS}, "the batch has token_type_ids, which cp_size cannot split"),
    ],
)
def test_a_batch_that_cannot_be_split_by_position_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, NotAvailableYet), match=message):
        cut({"input_ids": TOKENS, "labels": TOKENS, **more}, 0, 2)


def test_padding_on_the_right_is_split_like_other_tokens() -> None:
    mask = torch.tensor([[1] * 5 + [0] * 3] * 2)

    piece = cut({"input_ids": TOKENS, "labels": TOKENS.masked_fill(mask == 0, -100), "attention_mask": mask}, 0, 2)

    assert piece.labels[0].tolist() == [1, 2, -100, -100]
    assert int(piece.count) == 8


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        ({"cp_size": 3}, {}, "there are 2 processes, which is not a multiple of cp_size"),
        ({"cp_size": 2, "tp_size": 2}, {}, "tp_size 2 splits the model"),
        ({"cp_size": 2, "dp_shard_size": 2}, {}, "dp_shard_size 2 shards the model"),
        ({"cp_size": 2}, {"fsdp": True}, "fsdp shards the model"),
        ({"cp_size": 2}, {"deepspeed": {"train_batch_size": "auto"}}, "deepspeed shards the model"),
        ({"cp_size": 2}, {"torch_compile": True}, "torch_compile needs whole samples"),
        ({"cp_size": 2}, {"use_liger_kernel": True}, "use_liger_kernel needs whole samples"),
        ({"cp_size": 2}, {"neftune_noise_alpha": 5.0}, "neftune_noise_alpha needs whole samples"),
    ],
)
def test_arguments_that_exclude_context_parallelism_are_refused_at_the_start(
    config: dict[str, int], values: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)

    with pytest.raises((ValueError, NotAvailableYet), match=message):
        choose(TrainingArguments("out", use_cpu=True, parallelism_config=config, **values))


@pytest.mark.parametrize("says", ["object", "environment"])
def test_unsupported_context_parallel_options_of_accelerate_are_refused(
    says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerate = pytest.importorskip("accelerate")
    for name, value in {**LAUNCHED, "PARALLELISM_CONFIG_CP_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    if says == "environment":
        monkeypatch.setenv("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "alltoall")
        config = accelerate.ParallelismConfig()
    else:
        handler = accelerate.utils.TorchContextParallelConfig(cp_comm_strategy="alltoall")
        config = accelerate.ParallelismConfig(cp_handler=handler)

    with pytest.raises(ValueError, match=r"cp_comm_strategy.*'alltoall'.*'allgather'"):
        choose(TrainingArguments("out", use_cpu=True, parallelism_config=config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_attn_implementation": "eager"}, "attention is 'eager': load it with attn_implementation='sdpa'"),
        (
            {"layer_types": ["sliding_attention"]},
            "layers of sliding_attention, but cp_size supports only full_attention",
        ),
    ],
)
def test_an_attention_implementation_that_cannot_be_split_is_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    transformers = pytest.importorskip("transformers")
    from footplate.trainer.strategies.attention import require_shareable

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=8, num_hidden_layers=1, **sizes))
    for name, value in changes.items():
        setattr(model.config, name, value)

    with pytest.raises((ValueError, NotAvailableYet), match=message):
        require_shareable(model)
