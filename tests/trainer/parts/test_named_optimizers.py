"""Tests several optimizers in one loop, which equal a loop written by hand and resume exactly."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from footplate.contract.errors import UnknownComponent
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.named import NamedOptimizer, NamedOptimizers
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import StopAt, digest


class Bottleneck(nn.Module):
    """An entropy bottleneck that learns the quantiles of its channels with a loss of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.quantiles = nn.Parameter(torch.tensor([-3.0, 0.5, 3.0]).repeat(channels, 1))
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        centred = x - self.quantiles[:, 1]
        return x + 0.1 * torch.tanh(centred), (centred * self.scale).square().mean()

    def loss(self) -> Tensor:
        targets = torch.tensor([-1.0, 0.0, 1.0])
        return (torch.tanh(self.quantiles * self.scale[:, None]) - targets).abs().sum()


class Codec(nn.Module):
    """A compressor with an entropy bottleneck. Its dropout makes results depend on random draws."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 3), nn.Sequential(nn.Dropout(0.1), nn.Linear(3, 6))
        self.bottleneck = Bottleneck(3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y, rate = self.bottleneck(self.encode(x))
        back = self.decode(y)
        return {"loss": functional.mse_loss(back, x) + 0.1 * rate, "rate_gap": (rate - 1.0).square(), "logits": back}

    def aux_loss(self) -> Tensor:
        return self.bottleneck.loss()


MAIN = NamedOptimizer(
    "main", [r"^(?!.*quantiles)"], "adam", {"lr": 1e-2}, schedule="cosine", schedule_args={"num_warmup_steps": 3}
)
AUX = NamedOptimizer(
    "aux", [r"\.quantiles$"], "adam", {"lr": 5e-2}, loss="aux_loss",
    schedule="StepLR", schedule_args={"step_size": 4, "gamma": 0.5}, clip=0.3,
)  # fmt: skip


def data(n: int = 40) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(6, generator=generator)} for _ in range(n)]


def a_codec() -> Codec:
    set_seed(5)
    return Codec()


def trainer(folder: Path, specs: Any = (MAIN, AUX), kind: type[Trainer] = Trainer, **values: Any) -> Trainer:
    callbacks = values.pop("callbacks", [])
    defaults: dict[str, Any] = {
        "max_steps": 12, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "report_to": "none",
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "train_sampling_strategy": "sequential",
        "max_grad_norm": 0.5, "use_cpu": True,
    }  # fmt: skip
    args = TrainingArguments(str(folder), **{**defaults, **values})
    return kind(a_codec(), args, train_dataset=data(), optimizers=list(specs), callbacks=callbacks)


def windows(steps: int) -> Any:
    """Yields the two batches of four rows of each step. An epoch has five steps."""
    rows = torch.stack([row["x"] for row in data()])
    for step in range(steps):
        at = step % 5 * 8
        yield rows[at : at + 4], rows[at + 4 : at + 8]


def by_hand(steps: int = 12) -> Codec:
    model = a_codec()
    set_seed(42)
    model.train()
    inner = [value for name, value in model.named_parameters() if "quantiles" not in name]
    outer = [model.bottleneck.quantiles]
    main, aux = torch.optim.Adam(inner, lr=1e-2), torch.optim.Adam(outer, lr=5e-2)
    from footplate.trainer.schedules import get_cosine_schedule_with_warmup

    schedules = get_cosine_schedule_with_warmup(main, 3, steps), torch.optim.lr_scheduler.StepLR(aux, 4, 0.5)
    for step, window in enumerate(windows(steps)):
        if step % 5 == 0:
            torch.empty((), dtype=torch.int64).random_()  # opening a loader draws one number
        for x in window:
            (model(x)["loss"] / 2).backward(inputs=inner)
        torch.nn.utils.clip_grad_norm_(inner, 0.5)
        main.step()
        model.aux_loss().backward(inputs=outer)
        torch.nn.utils.clip_grad_norm_(outer, 0.3)
        aux.step()
        for schedule in schedules:
            schedule.step()
        model.zero_grad()
    return model


def test_several_optimizers_give_the_weights_of_a_hand_written_loop(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.train()

    assert digest(run.model.state_dict()) == digest(by_hand().state_dict())


def test_several_optimizers_with_an_own_compute_loss_give_the_same_weights(tmp_path: Path) -> None:
    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            outputs = model(**inputs)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    run = trainer(tmp_path, kind=Own)
    run.train()

    assert digest(run.model.state_dict()) == digest(by_hand().state_dict())


def test_learning_rates_and_losses_are_logged_by_optimizer_id(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.train()
    logs = [row for row in run.state.log_history if "aux_loss" in row]

    assert len(logs) == 12
    assert [row["aux_learning_rate"] for row in logs[:6]] == [0.05] * 4 + [0.025] * 2
    assert logs[-1]["aux_loss"] < logs[0]["aux_loss"]
    assert logs[3]["main_learning_rate"] == logs[3]["learning_rate"] == 1e-2


@pytest.mark.parametrize("stop", [3, 5, 7])
def test_a_resumed_run_with_several_optimizers_ends_with_the_same_weights(tmp_path: Path, stop: int) -> None:
    specs = [MAIN, NamedOptimizer(**{**vars(AUX), "per": "epoch", "every": 2, "schedule_args": {"step_size": 1}})]
    whole = trainer(tmp_path / "whole", specs)
    whole.train()
    trainer(tmp_path / "cut", specs, save_strategy="steps", save_steps=stop, callbacks=[StopAt(stop)]).train()
    resumed = trainer(tmp_path / "cut", specs)
    resumed.train(resume_from_checkpoint=True)

    assert resumed.state.global_step == 12
    assert digest(resumed.model.state_dict()) == digest(whole.model.state_dict())
    assert resumed.get_learning_rates() == whole.get_learning_rates()


def test_an_auxiliary_loss_of_the_output_updates_only_its_own_parameters(tmp_path: Path) -> None:
    gap = NamedOptimizer("gap", ["scale", "quantiles"], "sgd", {"lr": 0.1}, loss="rate_gap", clip=0)
    run = trainer(tmp_path, [NamedOptimizer("main", ["encode", "decode"], "sgd", {"lr": 0.1}), gap], max_grad_norm=0.0)
    run.train()

    model = a_codec()
    set_seed(42)
    model.train()
    inner = [*model.encode.parameters(), *model.decode.parameters()]
    outer = list(model.bottleneck.parameters())
    optimizer = torch.optim.SGD([*inner, *outer], lr=0.1)
    for step, window in enumerate(windows(12)):
        if step % 5 == 0:
            torch.empty((), dtype=torch.int64).random_()
        for x in window:
            out = model(x)
            (out["rate_gap"] / 2).backward(inputs=outer, retain_graph=True)
            (out["loss"] / 2).backward(inputs=inner)
        optimizer.step()
        optimizer.zero_grad()
    for mine, other in zip(run.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-7)


def test_an_optimizer_that_steps_every_third_time_does_not_affect_the_others(tmp_path: Path) -> None:
    sums: list[list[float]] = []

    class Watch(Trainer):
        def log(self, logs: Any, start_time: Any = None) -> None:
            if "loss" in logs:
                sums.append([float(parameter.detach().sum()) for parameter in self.model.parameters()])
            super().log(logs, start_time)

    slow = NamedOptimizer("slow", ["decode"], "sgd", {"lr": 0.1}, every=3)
    rest = NamedOptimizer("rest", ["^encode|^bottleneck"], "sgd", {"lr": 0.1})
    run = trainer(tmp_path, [slow, rest], Watch, max_steps=7)
    run.train()
    names = [name for name, _ in run.model.named_parameters()]
    at = names.index("decode.1.weight")

    moved = [first[at] != second[at] for first, second in itertools.pairwise(sums)]
    assert moved == [False, True, False, False, True, False]
    other = names.index("encode.weight")
    assert all(first[other] != second[other] for first, second in itertools.pairwise(sums))


def test_loss_optimizer_and_schedule_may_be_functions() -> None:
    model = a_codec()
    own = NamedOptimizer(
        "aux",
        ["quantiles"],
        lambda parameters, **kwargs: torch.optim.SGD(parameters, **kwargs),
        {"lr": 1.0},
        loss=lambda whole: whole.bottleneck.quantiles.square().sum(),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 100),
    )
    optimizer = NamedOptimizers(model, [NamedOptimizer("main", ["^(?!.*quantiles)"], "sgd", {"lr": 0.0}), own])
    schedule = optimizer.make_schedule(10)
    before = model.bottleneck.quantiles.detach().clone()

    optimizer.backward(model(torch.ones(2, 6))["loss"])
    optimizer.step()
    schedule.step()

    assert torch.equal(model.bottleneck.quantiles, before - 0.5 * 2 * before)
    assert schedule.get_last_lr() == [0.0, 0.5]


def test_a_plain_backward_of_the_loss_adds_no_gradient_to_an_auxiliary_optimizer() -> None:
    model, again = a_codec(), a_codec()
    for item, leaks in ((model, True), (again, False)):
        optimizer = NamedOptimizers(item, [MAIN, AUX])
        item.eval()
        loss = item(torch.ones(2, 6))["loss"]
        loss.backward() if leaks else optimizer.backward(loss)
        optimizer.step()

    assert digest(model.state_dict()) == digest(again.state_dict())


def test_a_step_without_the_backward_of_an_auxiliary_loss_is_refused() -> None:
    model = a_codec()
    optimizer = NamedOptimizers(
        model, [MAIN, NamedOptimizer("aux", ["quantiles"], "sgd", {"lr": 1.0}, loss="rate_gap")]
    )
    model(torch.ones(2, 6))["loss"].backward()
    with pytest.raises(RuntimeError, match=r"trainer.optimizer.backward\(loss\)"):
        optimizer.step()


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([MAIN], "bottleneck.quantiles belongs to none"),
        ([MAIN, NamedOptimizer("aux", ["bottleneck"])], "bottleneck.scale belongs to main and aux"),
        ([MAIN, AUX, NamedOptimizer("third", ["nothing"])], "third has no parameter"),
        ([MAIN, NamedOptimizer("main", ["quantiles"])], "two optimizers are called 'main'"),
        ([NamedOptimizer("all", [""], loss="aux_loss")], "none of the optimizers has the main loss"),
        ([NamedOptimizer("all", [""], "adamm")], "no optimizer named 'adamm'"),
    ],
)
def test_parameters_in_none_or_several_optimizers_are_refused(specs: list[NamedOptimizer], message: str) -> None:
    with pytest.raises((ValueError, UnknownComponent), match=message):
        NamedOptimizers(a_codec(), specs)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schedule": "StepLr", "schedule_args": {}}, "no schedule named 'StepLr'"),
        ({"schedule": "greedy", "schedule_args": {}}, "follows a metric"),
        ({"schedule": "cosine", "schedule_args": {}, "per": "epoch"}, "give num_training_steps, in epochs"),
        ({"every": 0}, "every 0 steps"),
        ({"per": "batch"}, "per 'batch'"),
    ],
)
def test_an_invalid_schedule_or_interval_of_an_optimizer_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, UnknownComponent), match=message):
        NamedOptimizers(a_codec(), [MAIN, NamedOptimizer(**{**vars(AUX), **changed})]).make_schedule(10)


def test_an_unknown_auxiliary_loss_is_refused_with_the_names_that_exist() -> None:
    model = a_codec()
    optimizer = NamedOptimizers(model, [MAIN, NamedOptimizer("aux", ["quantiles"], loss="ax_loss")])
    with pytest.raises(
        ValueError,
        match=r"'ax_loss'.*rate_gap.*'aux_loss'",
    ):
        optimizer.backward(model(torch.ones(2, 6))["loss"])


def test_a_checkpoint_of_other_optimizers_is_refused() -> None:
    optimizers = NamedOptimizers(a_codec(), [MAIN, AUX])
    other = NamedOptimizers(a_codec(), [MAIN, NamedOptimizer("tails", ["quantiles"])])
    with pytest.raises(ValueError, match="has the optimizers main, tails, but this run has main, aux"):
        optimizers.load_state_dict(other.state_dict())


def test_a_step_retried_after_out_of_memory_has_the_gradients_of_one_step(tmp_path: Path) -> None:
    """Gradients from before the out-of-memory error are discarded and not counted."""

    class Two(nn.Module):
        def __init__(self, fails_at: int) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 1), nn.Linear(6, 1)
            self.calls, self.fails_at = 0, fails_at

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            self.calls += 1
            if self.calls == self.fails_at:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return {"loss": self.a(x).square().mean(), "gap": self.b(x).square().mean()}

    def trained(fails_at: int) -> dict[str, Tensor]:
        set_seed(5)
        model = Two(fails_at)
        specs = [
            NamedOptimizer("a", ["^a"], "sgd", {"lr": 0.1}),
            NamedOptimizer("b", ["^b"], "sgd", {"lr": 0.1}, "gap"),
        ]
        args = TrainingArguments(
            str(tmp_path),
            max_steps=1,
            gradient_accumulation_steps=2,
            auto_find_batch_size=True,
            max_grad_norm=0.0,
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, args, train_dataset=data(16), optimizers=specs).train()
        return model.state_dict()

    whole, again = trained(fails_at=0), trained(fails_at=2)

    for name, value in whole.items():
        torch.testing.assert_close(again[name], value)


@pytest.mark.parametrize("loss", ["train", "zero_grad", "parameters"])
def test_a_loss_with_the_name_of_a_module_attribute_is_refused(loss: str) -> None:
    with pytest.raises(ValueError, match=f"the loss of optimizer 'aux' is {loss!r}, which every module has"):
        NamedOptimizers(a_codec(), [MAIN, NamedOptimizer("aux", ["quantiles"], loss=loss)])


def test_a_method_that_does_not_return_a_loss_is_refused_by_name() -> None:
    class Odd(Codec):
        def sizes(self) -> list[int]:
            return [1]

    optimizer = NamedOptimizers(Odd(), [MAIN, NamedOptimizer("aux", ["quantiles"], loss="sizes")])
    with pytest.raises(ValueError, match="'sizes' of Odd returned a list"):
        optimizer.step()


def test_a_pattern_that_matches_no_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="'decoder' of main matches none"):
        NamedOptimizers(a_codec(), [NamedOptimizer("main", ["", "decoder"])])


def test_fp16_with_several_optimizers_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fp16 scales one loss"):
        trainer(tmp_path, fp16=True).train()


def test_a_schedule_function_with_num_training_steps_gets_the_optimizers_steps() -> None:
    from footplate.trainer.schedules import get_linear_schedule_with_warmup as linear

    slow = NamedOptimizer(**{**vars(AUX), "schedule": linear, "schedule_args": {"num_warmup_steps": 0}, "every": 2})
    optimizer = NamedOptimizers(a_codec(), [MAIN, slow])
    schedule = optimizer.make_schedule(12)._all["aux"][1]

    assert schedule.lr_lambdas[0](6) == 0.0
    assert schedule.lr_lambdas[0](3) == 0.5
