"""Tests FP8 of torchao, as `accelerate launch --mixed_precision fp8` requests it, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchao.float8.float8_linear import Float8Linear

from footplate.components import toy
from footplate.contract.errors import NotAvailableYet
from footplate.trainer import precision
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.launcher import PRECISION
from footplate.trainer.strategies.choose import choose
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import Events, StopAt
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.launch import launched, read

BACKEND = "ACCELERATE_FP8_BACKEND"


@pytest.fixture
def fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRECISION, "fp8")


def trained(
    folder: Path, *, stop_at: int | None = None, resume: bool = False, model: Any = None, **values: Any
) -> tuple[Trainer, list[float]]:
    events = Events()
    args = TrainingArguments(
        str(folder), max_steps=6, logging_steps=1, learning_rate=1e-2, save_strategy="no", use_cpu=True, **values
    )
    trainer = Trainer(
        model or fresh(),
        args,
        train_dataset=toy.text(n=64, length=16),
        callbacks=[events, *([StopAt(stop_at)] if stop_at else [])],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, events.losses


def fresh() -> nn.Module:
    set_seed(7)
    return toy.gpt(layers=2, heads=2, width=32, context=16)


def converted(model: nn.Module) -> list[str]:
    return [name for name, item in model.named_modules() if isinstance(item, Float8Linear)]


@pytest.mark.usefixtures("fp8")
def test_fp8_of_the_launcher_trains_close_to_bf16_in_the_inner_layers(tmp_path: Path) -> None:
    trainer, losses = trained(tmp_path / "fp8")
    outcome = (trainer.accelerator.mixed_precision, str(trainer.accelerator.fp8_backend.value))
    plain, expected = trained(tmp_path / "bf16", bf16=True)

    assert losses == pytest.approx(expected, rel=2e-3)
    assert losses != expected
    weight = "blocks.1.feed.0.weight"
    assert (trainer.model.state_dict()[weight] - fresh().state_dict()[weight]).abs().mean() > 0.01
    layers = [name for name, item in plain.model.named_modules() if isinstance(item, nn.Linear)]
    assert converted(trainer.model) == layers[1:-1]
    assert converted(plain.model) == []
    assert outcome == ("fp8", "AO")


@pytest.mark.usefixtures("fp8")
def test_a_model_that_was_evaluated_first_is_trained_in_fp8(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), max_steps=1, save_strategy="no", use_cpu=True)
    data = toy.text(n=16, length=16)
    trainer = Trainer(fresh(), args, train_dataset=data, eval_dataset=data)

    trainer.evaluate()
    trainer.train()

    assert converted(trainer.model)


@pytest.mark.usefixtures("fp8")
def test_fp8_training_resumes_bit_identically_and_saves_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, losses = trained(tmp_path / "whole")
    _, first = trained(tmp_path / "again", stop_at=3)
    again, rest = trained(tmp_path / "again", resume=True)

    assert first + rest == losses
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    monkeypatch.delenv(PRECISION)
    plain, _ = trained(tmp_path / "again", resume=True)
    assert plain.state.global_step == 6


@pytest.mark.usefixtures("fp8")
@pytest.mark.matrix
def test_two_fp8_processes_train_like_a_single_process_up_to_their_scales(tmp_path: Path) -> None:
    """The scale of a batch follows from its largest number, and each of two processes has half of the batch."""
    values = {"name": "fp8", "text": True, "max_steps": 4}
    launched(tmp_path, [{"run": "resumed", "at": 2, **values}], world=2, **{PRECISION: "fp8"})
    single_run = scenarios.trained(tmp_path, **values)

    for item in read(tmp_path, 0, 2):
        assert item["whole"]["losses"] == pytest.approx(single_run["losses"], rel=2e-3)
        assert item["first"]["losses"] + item["rest"]["losses"] == item["whole"]["losses"]
        assert item["rest"]["weights"] == item["whole"]["weights"]


@pytest.mark.usefixtures("fp8")
def test_fp8_is_refused_for_a_model_without_a_suitable_layer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no layer.*GptForCausalLM"):
        trained(tmp_path, model=toy.gpt(layers=1, heads=2, width=20, context=16))


@pytest.mark.usefixtures("fp8")
def test_fp8_is_refused_without_gpu_support_or_torchao_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
        with pytest.raises(ValueError, match=r"capability 8\.9 or more, and this one has 8\.0: use bf16"):
            precision.require_fp8(on_gpu=True)
        patched.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        precision.require_fp8(on_gpu=True)
    monkeypatch.setattr("accelerate.utils.is_torchao_available", lambda: False)
    with pytest.raises(ImportError, match=r"pip install 'footplate\[torchao\]'"):
        choose(TrainingArguments("out", use_cpu=True))


@pytest.mark.usefixtures("fp8")
@pytest.mark.parametrize("backend", ["TE", "msamp"])
def test_other_fp8_backends_of_accelerate_are_refused_by_name(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND, backend)

    with pytest.raises(NotAvailableYet, match=f"{BACKEND} is {backend.upper()}") as error:
        choose(TrainingArguments("out", use_cpu=True))

    assert f"{BACKEND}=AO" in str(error.value.hint)


@pytest.mark.usefixtures("fp8")
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Fsdp", {"fsdp": True}),
        ("Fsdp1", {"fsdp": True, "fsdp_config": {"version": 1}}),
        ("TensorParallel", {"parallelism_config": {"tp_size": 2}}),
    ],
)
def test_strategies_that_shard_the_model_refuse_fp8(
    name: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}
    for variable, value in launched.items():
        monkeypatch.setenv(variable, value)

    with pytest.raises(NotAvailableYet, match=f"fp8 replaces layers of the model, but {name} cannot shard"):
        choose(TrainingArguments("out", use_cpu=True, **values))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_half_precision_set_by_the_launcher_becomes_the_argument(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRECISION, name)

    assert getattr(TrainingArguments("out"), name) is True
    assert TrainingArguments("out", **{"bf16" if name == "fp16" else "fp16": True}).to_dict()[name] is False
    assert precision.precision_of(TrainingArguments("out")) == name


def test_an_unknown_precision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRECISION, "fp4")

    with pytest.raises(ValueError, match=r"'fp4'.*bf16.*fp16.*fp8"):
        TrainingArguments("out")


def test_a_precision_in_the_arguments_wins_over_the_launcher(fp8: None) -> None:
    assert precision.precision_of(TrainingArguments("out", bf16=True)) == "bf16"
