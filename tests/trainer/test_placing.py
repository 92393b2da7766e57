"""Tests that a model which was placed on devices or quantized when loaded is not moved."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import footplate
from footplate.components import toy
from footplate.trainer.placed_models import is_model_parallel, refuse_quantized


class Watched(type(toy.mlp())):  # type: ignore[misc]
    """Records calls of `to`, because `to` raises an error for 8-bit models of transformers."""

    def to(self, *where: Any, **how: Any) -> Any:
        self.moved = True
        return super().to(*where, **how)


def trained(folder: Path, args: type = footplate.TrainingArguments, **attributes: Any) -> Any:
    model = Watched(8, 16, 2, 4, 0.0)
    model.moved = False
    model.__dict__.update(attributes)
    values = {"max_steps": 2, "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    trainer = footplate.Trainer(
        model, args(str(folder), **values), train_dataset=toy.classification(n=8), eval_dataset=toy.classification(n=8)
    )
    trainer.evaluate()
    trainer.train()
    return trainer


class Stay(footplate.TrainingArguments):
    place_model_on_device = False  # type: ignore[assignment]


class Go(footplate.TrainingArguments):
    place_model_on_device = True  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("attributes", "args", "moves", "is_parallel"),
    [
        ({}, footplate.TrainingArguments, True, False),
        ({}, Stay, False, False),
        ({"is_loaded_in_4bit": True}, footplate.TrainingArguments, False, False),
        ({"is_loaded_in_8bit": True}, Go, False, False),
        ({"quantization_method": "bitsandbytes"}, footplate.TrainingArguments, False, False),
        ({"hf_device_map": {"a": 0, "b": 1}}, footplate.TrainingArguments, False, True),
        ({"hf_device_map": {"": "cpu"}}, Go, False, False),
        ({"hf_device_map": {"": 0}}, footplate.TrainingArguments, False, True),
        ({"is_parallelizable": True, "model_parallel": True}, footplate.TrainingArguments, False, True),
        ({"is_parallelizable": True, "model_parallel": False}, footplate.TrainingArguments, True, False),
    ],
)
def test_a_model_is_moved_to_the_device_only_if_it_was_not_placed(
    tmp_path: Path, attributes: dict[str, Any], args: type, moves: bool, is_parallel: bool
) -> None:
    trainer = trained(tmp_path, args, **attributes)

    assert trainer.model.moved is moves
    assert (trainer.place_model_on_device, trainer.is_model_parallel) == (moves, is_parallel)
    assert trainer.state.global_step == 2


def test_a_device_map_with_only_the_device_of_the_process_is_not_model_parallel() -> None:
    model = toy.mlp()
    model.hf_device_map = {"": 0, "head": "cuda:0", "rest": "cpu"}  # type: ignore[assignment]

    assert not is_model_parallel(model, torch.device("cuda:0"))
    assert is_model_parallel(model, torch.device("cuda:1"))


def test_a_quantized_model_without_an_adapter_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"quantized weights cannot be trained: put an adapter on it with peft"):
        trained(tmp_path, is_quantized=True)

    by = {"is_quantized": True, "hf_quantizer": SimpleNamespace(is_qat_trainable=True, is_trainable=True)}
    refuse_quantized(SimpleNamespace(**by))  # type: ignore[arg-type]
    by["hf_quantizer"] = SimpleNamespace(
        is_qat_trainable=True, is_trainable=False, quantization_config=SimpleNamespace(quant_method="hqq")
    )
    with pytest.raises(ValueError, match="quantized by hqq, which does not support training"):
        refuse_quantized(SimpleNamespace(**by))  # type: ignore[arg-type]
