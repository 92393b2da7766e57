"""Settings of `fsdp` and `fsdp_config` that are applied, and those that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.strategies.fsdp_settings import FsdpSettings


def settings(fsdp: Any = True, config: Any = None, **values: Any) -> FsdpSettings:
    return FsdpSettings.of(TrainingArguments("out", fsdp=fsdp, fsdp_config=config, **values))


def test_the_default_is_fsdp_2_with_full_shard_and_full_checkpoints() -> None:
    result = settings()

    assert (result.version, result.reshard, result.state_dict_type) == (2, "full_shard", "FULL_STATE_DICT")


@pytest.mark.parametrize(
    ("fsdp", "config", "name", "value"),
    [
        ("shard_grad_op auto_wrap", None, "reshard", "shard_grad_op"),
        (["full_shard", "offload"], None, "cpu_offload", True),
        (True, {"reshard_after_forward": False}, "reshard", "shard_grad_op"),
        ("full_shard", {"fsdp_reshard_after_forward": "false"}, "reshard", "shard_grad_op"),
        (True, {"fsdp_state_dict_type": "sharded_state_dict"}, "state_dict_type", "SHARDED_STATE_DICT"),
        (True, {"transformer_layer_cls_to_wrap": "A, B"}, "layers", ("A", "B")),
        ("shard_grad_op", {"version": 1, "use_orig_params": "true"}, "reshard", "shard_grad_op"),
        (True, {"fsdp_version": "1", "fsdp_backward_prefetch": "backward_pre"}, "backward_prefetch", "BACKWARD_PRE"),
        (True, {"activation_checkpointing": True}, "activation_checkpointing", True),
    ],
)
def test_older_and_current_spellings_of_fsdp_options_have_the_same_meaning(
    fsdp: Any, config: Any, name: str, value: Any
) -> None:
    assert getattr(settings(fsdp, config), name) == value


def test_the_fsdp_config_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "fsdp.json"
    path.write_text(json.dumps({"min_num_params": 20}))

    assert settings(True, str(path)).min_num_params == 20


@pytest.mark.parametrize(
    ("fsdp", "config", "values", "message"),
    [
        (True, {"reshard_after_foward": True}, {}, "did you mean 'reshard_after_forward'"),
        (True, {"version": 3}, {}, "version is 3: use 1 or 2"),
        ("hybrid_shard", None, {}, "reshard_after_forward is 'hybrid_shard', but version 2 accepts full_shard"),
        (True, {"use_orig_params": True}, {}, "has use_orig_params, which only FSDP 1 has, not version 2"),
        (True, {"state_dict_type": "LOCAL_STATE_DICT"}, {}, "use one of FULL_STATE_DICT, SHARDED_STATE_DICT"),
        (True, {"xla": True}, {}, "fsdp_config has xla"),
        (True, {"cpu_ram_efficient_loading": True}, {}, "fsdp_config has cpu_ram_efficient_loading"),
        (True, {"version": 1, "reshard_after_forward": "no_shard"}, {}, "version 1 accepts full_shard, shard_grad_op"),
        (True, {"version": 1, "state_dict_type": "SHARDED_STATE_DICT"}, {}, "version 1 writes whole checkpoints"),
        (True, {"version": 1, "cpu_offload": True}, {}, "cpu_offload cannot be True with version 1: leave version out"),
        (True, {"version": 1, "use_orig_params": "false"}, {}, "with and without decay would be merged"),
        (True, {"version": 1, "sync_module_states": False}, {}, "all processes begin with the main process's weights"),
        (True, {"version": 1, "backward_prefetch": "early"}, {}, "backward_prefetch is 'early': use one of NO_PREF"),
        ("fullshard", None, {}, "did you mean 'full_shard'"),
        (True, None, {"fp16": True}, "fp16's loss scale is not shared among fsdp's processes: use bf16"),
        (
            True,
            {"activation_checkpointing": True},
            {"activation_checkpointing": True},
            "activation_checkpointing and fsdp_config's activation_checkpointing both",
        ),
    ],
)
def test_a_wrong_fsdp_config_is_refused_with_a_hint(
    fsdp: Any, config: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        settings(fsdp, config, **values)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.other = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight


def test_fsdp_wraps_the_named_the_declared_or_the_repeated_layers_of_a_model() -> None:
    model = toy.gpt(layers=3)

    assert [type(unit).__name__ for unit in settings().units(model)] == ["Block"] * 3
    assert settings(True, {"transformer_layer_cls_to_wrap": "LayerNorm"}).units(model)
    assert settings(True, {"auto_wrap_policy": "NO_WRAP"}).units(model) == []
    model._no_split_modules = ["LayerNorm"]
    assert {type(unit).__name__ for unit in settings().units(model)} == {"LayerNorm"}
    with pytest.raises(ValueError, match=r"'Blok'.*'Block'"):
        settings(True, {"transformer_layer_cls_to_wrap": "Blok"}).units(model)


def test_weights_tied_across_layers_stay_in_the_outer_fsdp_unit() -> None:
    model = Tied()

    assert settings(True, {"min_num_params": 16}).units(model) == [model.other]
    assert torch.equal(model.first.weight, model.second.weight)
