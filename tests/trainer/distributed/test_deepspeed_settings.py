"""Tests DeepSpeed's config: `auto` is filled from the arguments, and contradictions are refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.strategies.deepspeed_settings import settings


def filled(config: Any, model: Any = None, **values: Any) -> dict[str, Any]:
    args = TrainingArguments("out", deepspeed=config, **{"per_device_train_batch_size": 4, **values})
    return settings(args, model or toy.mlp(), per_process=4, world=2)


def test_auto_values_of_deepspeed_are_filled_from_the_arguments() -> None:
    model = toy.mlp()
    model.config = SimpleNamespace(hidden_size=10)
    zero = {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    }
    adam = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}

    result = filled(
        {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto"},
            "zero_optimization": zero,
            "optimizer": adam,
        },
        model,
        gradient_accumulation_steps=3,
        max_grad_norm=0.5,
        bf16=True,
    )

    # The Trainer accumulates gradients itself, so DeepSpeed's engine must not.
    assert (result["train_batch_size"], result["gradient_accumulation_steps"]) == (8, 1)
    assert (result["gradient_clipping"], result["bf16"]) == (0.5, {"enabled": True})
    assert result["zero_optimization"] == {
        "stage": 3,
        "reduce_bucket_size": 100,
        "stage3_prefetch_bucket_size": 90,
        "stage3_param_persistence_threshold": 100,
    }
    assert "optimizer" not in result
    assert "fp16" not in result


def test_a_deepspeed_config_file_is_read_and_not_changed(tmp_path: Path) -> None:
    path, config = tmp_path / "zero.json", {"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}
    path.write_text(json.dumps(config))

    assert filled(str(path))["zero_optimization"] == {"stage": 2}
    assert json.loads(path.read_text()) == config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"train_batch_size": 9}, "train_batch_size is 9, but the samples of a step over all processes is 8"),
        ({"scheduler": {"type": "WarmupLR"}}, "has the scheduler WarmupLR, but lr_scheduler_type makes the schedule"),
        ({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}, "depend on the model's hidden_size"),
        ({"steps_per_print": "auto"}, "has auto for steps_per_print, and no argument sets it"),
    ],
)
def test_a_deepspeed_value_that_contradicts_an_argument_names_both(config: Any, message: str) -> None:
    """The contract has the rules and their other cases, in tests/contract/test_strategies.py."""
    with pytest.raises(ValueError, match=message):
        filled(config)
