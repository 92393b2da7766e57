"""Strategies that `accelerate launch` requests, in the variables that it really sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.launch import launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.strategies.choose import choose
from footplate.trainer.strategies.fsdp_settings import FsdpSettings
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.launch import launched, read

FSDP_2 = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"]


def launcher_variables(*options: str) -> dict[str, str]:
    """Returns the variables that `accelerate launch` sets for strategies with these options."""
    args = launch_command_parser().parse_args(
        [*options, "--mixed_precision", "no", "--num_processes", "2", "--num_machines", "1", "s.py"]
    )
    # The values that accelerate sets if there is no config file.
    args.dynamo_backend, args.deepspeed_fields_from_accelerate_config = "no", ""
    environment = prepare_deepspeed_cmd_env(args)[1] if args.use_deepspeed else prepare_multi_gpu_env(args)
    of = ("FSDP_", "ACCELERATE_", "PARALLELISM_CONFIG_")
    return {name: value for name, value in environment.items() if name.startswith(of)}


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Any:
    def begin(*options: str) -> None:
        for name, value in launcher_variables(*options).items():
            monkeypatch.setenv(name, value)

    return begin


def test_fsdp_set_by_the_launcher_gives_the_curve_of_one_process(tmp_path: Path) -> None:
    values = {"name": "launched", "text": True, "ignore": 1}
    launched(tmp_path, [{"run": "trained", **values}], world=2, **launcher_variables(*FSDP_2))

    single_run = scenarios.trained(tmp_path, **values)
    for item in read(tmp_path, 0, 2):
        scenarios.assert_same_run(item, single_run)
        assert item["strategy"] == "Fsdp"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--fsdp_version", "2"], {"version": 2, "reshard": "full_shard", "cpu_offload": False}),
        (["--fsdp_version", "2", "--fsdp_reshard_after_forward", "false"], {"reshard": "shard_grad_op"}),
        (["--fsdp_version", "2", "--fsdp_offload_params", "true"], {"cpu_offload": True}),
        (["--fsdp_version", "2", "--fsdp_activation_checkpointing", "true"], {"activation_checkpointing": True}),
        (["--fsdp_version", "2", "--fsdp_state_dict_type", "SHARDED_STATE_DICT"],
         {"state_dict_type": "SHARDED_STATE_DICT"}),
        (["--fsdp_transformer_layer_cls_to_wrap", "BertLayer,Pooler"], {"layers": ("BertLayer", "Pooler")}),
        (["--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP", "--fsdp_min_num_params", "7"],
         {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 7}),
        (["--fsdp_auto_wrap_policy", "NO_WRAP"], {"auto_wrap_policy": "NO_WRAP", "min_num_params": 0}),
        (["--fsdp_version", "1", "--fsdp_sharding_strategy", "SHARD_GRAD_OP"],
         {"version": 1, "reshard": "shard_grad_op"}),
        (["--fsdp_backward_prefetch", "BACKWARD_POST"], {"version": 1, "backward_prefetch": "BACKWARD_POST"}),
    ],
)  # fmt: skip
def test_every_fsdp_option_of_the_launcher_becomes_an_fsdp_config_value(
    launcher: Any, options: list[str], expected: dict[str, Any]
) -> None:
    launcher("--use_fsdp", *options)

    args = TrainingArguments("out")

    assert args.fsdp is True
    settings = FsdpSettings.of(args)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_deepspeed_options_of_the_launcher_become_the_argument(launcher: Any, tmp_path: Path) -> None:
    launcher(
        "--use_deepspeed",
        "--zero_stage",
        "3",
        "--zero3_init_flag",
        "false",
        "--offload_optimizer_device",
        "cpu",
        "--gradient_clipping",
        "0.5",
    )

    result = TrainingArguments("out", max_grad_norm=0.5).deepspeed

    assert result["zero_optimization"] == {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    assert (result["gradient_clipping"], result["train_batch_size"]) == (0.5, "auto")


def test_a_deepspeed_file_of_the_launcher_becomes_the_argument(launcher: Any, tmp_path: Path) -> None:
    file = tmp_path / "Zero.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 1}, "train_batch_size": "auto"}))

    launcher("--use_deepspeed", "--deepspeed_config_file", str(file))

    assert TrainingArguments("out").deepspeed == str(file)


def test_parallelism_sizes_of_the_launcher_become_the_argument(launcher: Any) -> None:
    launcher("--use_parallelism_config", "--parallelism_config_tp_size", "2")

    assert TrainingArguments("out").parallelism_config.tp_size == 2


@pytest.mark.parametrize("own_value", ["shard_grad_op auto_wrap", True])
def test_arguments_win_over_the_launcher_and_are_not_mixed_with_it(launcher: Any, own_value: Any) -> None:
    launcher(*FSDP_2, "--fsdp_offload_params", "true")

    args = TrainingArguments("out", fsdp=own_value)

    assert (args.fsdp, args.fsdp_config) == (own_value, None)
    with pytest.raises(ValueError, match="the launcher sets fsdp, and the arguments set deepspeed: leave one"):
        TrainingArguments("out", deepspeed={"zero_optimization": {"stage": 2}})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--use_fsdp", "--fsdp_activation_checkpointing_offload", "true"],
            "no option 'activation_checkpointing_offload'",
        ),
        (["--use_fsdp", "--fsdp_state_dict_type", "SHARDED_STATE_DICT"], "version 1 writes whole checkpoints"),
        (["--use_deepspeed", "--zero_stage", "3", "--zero3_init_flag", "true"], "ACCELERATE_DEEPSPEED_ZERO3_INIT=true"),
    ],
)
def test_unsupported_options_of_the_launcher_are_refused_by_name(launcher: Any, options: list[str], says: str) -> None:
    launcher(*options)

    with pytest.raises((ValueError, NotAvailableYet), match=says):
        FsdpSettings.of(TrainingArguments("out"))


def test_megatron_requested_by_the_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")

    with pytest.raises(NotAvailableYet, match="ACCELERATE_USE_MEGATRON_LM=true"):
        choose(TrainingArguments("out"))
