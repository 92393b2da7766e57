"""A name selects an optimizer class and its arguments. The built-in optimizers step as they should."""

from __future__ import annotations

import importlib.machinery
import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import optimization as theirs
from transformers import trainer_optimizer as their_choice
from transformers.trainer_pt_utils import get_parameter_names as their_parameter_names
from transformers.training_args import OptimizerNames as TheirNames

from footplate.contract.arguments import TrainingArguments
from footplate.contract.arguments.not_supported import CHOICES_NOT_YET
from footplate.contract.errors import NotAvailableYet, UnknownComponent
from footplate.trainer import optimizers as ours
from footplate.trainer.names import OptimizerNames
from footplate.trainer.optimizers.choose import _MAKERS, optimizer_class
from footplate.trainer.optimizers.groups import (
    decay_parameter_names,
    get_parameter_names,
    is_optimizer_factory,
    make_optimizer,
    parameter_groups,
)


def arguments(name: str, optim_args: str | None = None, **values: Any) -> Any:
    """Returns arguments with this optimizer. It is set afterwards, so that the arguments do not check its name."""
    args: Any = TrainingArguments("out", **values)
    args.optim, args.optim_args = name, optim_args
    return args


# Names


def test_every_optimizer_name_of_transformers_is_supported_or_declined() -> None:
    assert {item.name: str(item) for item in OptimizerNames} == {item.name: item.value for item in TheirNames}
    for name in OptimizerNames:
        if name not in _MAKERS:
            with pytest.raises(NotAvailableYet, match=f"optim {name} is not available") as error:
                optimizer_class(arguments(name))
            assert "optimizer_cls_and_kwargs" in str(error.value.hint)
            with pytest.raises(NotAvailableYet, match=f"optim '{name}' is not available"):
                TrainingArguments("out", optim=name)
    assert not set(CHOICES_NOT_YET["optim"]) & set(_MAKERS)


def test_an_unknown_optimizer_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownComponent) as error:
        optimizer_class(arguments("adamw_troch"))
    assert error.value.hint == "did you mean 'adamw_torch'?"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs stand-ins for packages that need a GPU. Their classes record their arguments."""

    class Kept(torch.optim.Optimizer):
        def __init__(
            self,
            params: Any,
            lr: float = 1e-3,
            betas: Any = None,
            eps: float = 1e-8,
            alpha: float = 0.99,
            weight_decay: float = 0,
            optim_bits: int = 32,
            is_paged: bool = False,
            momentum: float = 0,
            t_alpha: int | None = None,
            block_size: int = 256,
            bf16_stochastic_round: bool = False,
            min_8bit_size: int = 4096,
        ) -> None:
            super().__init__(params, {"lr": lr})
            self.made_with = {"optim_bits": optim_bits}

    def module(name: str, **content: Any) -> ModuleType:
        stub = ModuleType(name)
        stub.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(stub).update(content)
        monkeypatch.setitem(sys.modules, name, stub)
        return stub

    optimizers = {
        name: type(name, (Kept,), {"__module__": "bitsandbytes"}) for name in ("AdamW", "Lion", "RMSprop", "AdEMAMix")
    }
    overrides: list[Any] = []

    class Manager:
        def register_module_override(self, *what: Any) -> None:
            overrides.append(what)

        @classmethod
        def get_instance(cls) -> Manager:
            return cls()

    optim = module("bitsandbytes.optim", **optimizers, GlobalOptimManager=Manager)
    module("bitsandbytes", optim=optim, overrides=overrides)
    module("torchao", __version__="0.15.0")
    module("torchao.optim", AdamW4bit=type("AdamW4bit", (Kept,), {}), AdamW8bit=type("AdamW8bit", (Kept,), {}))
    for name in ("is_bitsandbytes_available", "is_torchao_available"):
        monkeypatch.setattr(their_choice, name, lambda *_: True)
    monkeypatch.setattr(their_choice.importlib.metadata, "version", lambda _: "0.15.0")


BUILT_IN_HERE = {"lion_32bit", "schedule_free_adamw", "schedule_free_sgd"}


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("name", sorted(set(_MAKERS) - BUILT_IN_HERE))
def test_an_optimizer_has_the_class_and_arguments_it_has_in_transformers(name: str) -> None:
    args = arguments(name, learning_rate=3e-3, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-6)
    adam = {"betas": (0.8, 0.95), "eps": 1e-6}
    context = their_choice.OptimizerContext(args, None, {"lr": 3e-3}, adam, {})

    our_class, kwargs = optimizer_class(args)
    expected, expected_kwargs = their_choice._OPTIMIZER_HANDLERS[TheirNames(name)](context)

    same = our_class is expected or (our_class is ours.Adafactor and expected is theirs.Adafactor)
    assert same
    defaults = {parameter.name: parameter.default for parameter in inspect.signature(our_class).parameters.values()}
    assert {**defaults, **kwargs} == {**defaults, **expected_kwargs}


@pytest.mark.usefixtures("packages")
def test_embeddings_keep_32_bit_state_with_an_8_bit_optimizer() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2))
    kind, kwargs = optimizer_class(arguments("adamw_bnb_8bit"))

    make_optimizer(kind, kwargs, model, [], 0.0)

    assert sys.modules["bitsandbytes"].overrides == [(model[0], "weight", {"optim_bits": 32})]


@pytest.mark.parametrize(("name", "extra"), [("adamw_8bit", "bitsandbytes"), ("adamw_torch_4bit", "torchao")])
def test_an_optimizer_without_its_package_is_refused_with_the_pip_command(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (f"{extra}.optim", extra):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"optim {name} needs the extra {extra}: pip install 'footplate\[{extra}\]'"):
        optimizer_class(arguments(name))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sgd", "momentum=0.9, nesterov=true,dampening=0", {"momentum": 0.9, "nesterov": True, "dampening": 0.0}),
        ("adagrad", "lr_decay=0.1,eps=1e-5", {"lr_decay": 0.1, "eps": 1e-5}),
        ("rmsprop", "alpha=0.9,centered=1,momentum=0.5", {"alpha": 0.9, "centered": True, "momentum": 0.5}),
    ],
)
def test_optim_args_are_parsed_as_in_transformers(name: str, text: str, expected: dict[str, Any]) -> None:
    context = their_choice.OptimizerContext(None, None, {"lr": 5e-5}, {}, their_choice._parse_optim_args(text))

    _, kwargs = optimizer_class(arguments(name, text))

    assert kwargs == {"lr": 5e-5, **expected} == their_choice._OPTIMIZER_HANDLERS[TheirNames(name)](context)[1]


def test_optim_args_that_transformers_ignores_are_applied() -> None:
    assert optimizer_class(arguments("adamw_torch", "amsgrad=true,foreach=no"))[1]["amsgrad"] is True
    assert optimizer_class(arguments("adafactor", "clip_threshold=0.5"))[1]["clip_threshold"] == 0.5
    assert optimizer_class(arguments("adafactor", "beta1=none"))[1]["beta1"] is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sgd", "momentun=0.9", "has momentun, but SGD takes only: .*momentum"),
        ("sgd", "momentum", "has 'momentum': write name=value"),
        ("sgd", "momentum=much", "momentum=much, which is not a number"),
        ("sgd", "nesterov=2", "neither true nor false"),
        ("sgd", "weight_decay=0.1", "set elsewhere: use weight_decay"),
        ("adamw_torch", "eps=1", "use adam_epsilon"),
        ("adamw_torch", "lr=1", "use learning_rate"),
    ],
)
def test_unknown_optim_args_are_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optimizer_class(arguments(name, text))


# Groups


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


class Zoo(nn.Module):
    """A model with every kind of name and layer that decides about weight decay, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)) for _ in range(2)])
        self.rmsnorm, self.norm, self.final_norm, self.normal = RMSNorm(), RMSNorm(), RMSNorm(), nn.Linear(2, 2)
        self.LayerNorm, self.batch = RMSNorm(), nn.BatchNorm1d(2)
        self.bias_free = nn.Parameter(torch.ones(1))
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(2, 3)
        self.head.weight = self.embed.weight
        self.wrapped = nn.LayerNorm(2)
        self.wrapped.inside = nn.Linear(2, 2)


def test_the_same_parameters_decay_as_in_transformers() -> None:
    names = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]

    assert decay_parameter_names(Zoo()) == their_parameter_names(Zoo(), [nn.LayerNorm], names)
    assert get_parameter_names(Zoo(), [nn.Linear]) == their_parameter_names(Zoo(), [nn.Linear])
    assert "head.weight" in decay_parameter_names(Zoo())
    assert not any("wrapped" in name for name in decay_parameter_names(Zoo()))


def test_biases_and_norms_do_not_decay_and_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    model[2].weight.requires_grad = False

    names = decay_parameter_names(model)
    decay, rest = parameter_groups(model, names, 0.1)

    assert names == ["0.weight", "2.weight"]
    assert (len(decay["params"]), decay["weight_decay"]) == (1, 0.1)
    assert (len(rest["params"]), rest["weight_decay"]) == (4, 0.0)


def test_a_tied_weight_is_updated_once_per_step() -> None:
    zoo = Zoo()
    groups = parameter_groups(zoo, decay_parameter_names(zoo), 0.1)

    everything = [parameter for group in groups for parameter in group["params"]]
    assert len({id(item) for item in everything}) == len(everything) == len(list(zoo.parameters()))


def test_an_optimizer_factory_gets_the_model_and_chooses_its_groups() -> None:
    model = nn.Linear(2, 2)

    class Factory:
        def __call__(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
            return torch.optim.SGD([model.weight], lr=lr)

    class Whole(torch.optim.SGD):
        def __init__(self, model: nn.Module, lr: float) -> None:
            super().__init__(model.parameters(), lr=lr)

    optimizer = make_optimizer(Factory, {"lr": 0.5}, model, [], 0.1)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]
    own = make_optimizer(torch.optim.SGD, {"lr": 0.5, "params": [model.bias]}, model, [], 0.1)
    assert own.param_groups[0]["params"] == [model.bias]
    assert len(make_optimizer(Whole, {"lr": 0.5, "model": model}, model, [], 0.1).param_groups[0]["params"]) == 2
    assert is_optimizer_factory(Factory)
    assert not is_optimizer_factory(torch.optim.SGD)


# Steps


def weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (3,), (2, 3, 4), (1,)]
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step + 1)
    return [torch.randn(weight.shape, generator=generator) for weight in weights()]


def run(optimizer: torch.optim.Optimizer, start: int = 0, steps: int = 12) -> list[Tensor]:
    for step in range(start, steps):
        parameters = [item for group in optimizer.param_groups for item in group["params"]]
        for parameter, gradient in zip(parameters, gradients(step), strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
    return [item.detach() for item in parameters]


def equal(mine: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(mine, other, strict=True))


ADAFACTOR: list[dict[str, Any]] = [
    {"lr": 1e-2, "scale_parameter": False, "relative_step": False},
    {"lr": 1e-2, "scale_parameter": True, "relative_step": False, "weight_decay": 0.1, "beta1": 0.9},
    {"scale_parameter": True, "relative_step": True, "warmup_init": True, "clip_threshold": 0.5},
    {"decay_rate": -0.6, "eps": (1e-20, 1e-2)},
]


@pytest.mark.parametrize("options", ADAFACTOR)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adafactor_is_bit_identical_to_that_of_transformers(options: dict[str, Any], dtype: torch.dtype) -> None:
    mine, other = ours.Adafactor(weights(dtype), **options), theirs.Adafactor(weights(dtype), **options)

    assert equal(run(mine), run(other))
    assert mine.state_dict()["state"][0].keys() == other.state_dict()["state"][0].keys()


def test_adafactor_continues_from_a_state_of_transformers() -> None:
    options = ADAFACTOR[1]
    straight = run(theirs.Adafactor(weights(), **options))
    source = theirs.Adafactor(weights(), **options)
    half = run(source, steps=6)
    resumed = ours.Adafactor([nn.Parameter(item.clone()) for item in half], **options)
    resumed.load_state_dict(source.state_dict())

    assert equal(run(resumed, start=6), straight)


def test_the_schedule_of_adafactor_reports_its_own_learning_rate() -> None:
    mine, other = ours.Adafactor(weights()), theirs.Adafactor(weights())
    schedules = ours.AdafactorSchedule(mine, 0.5), theirs.AdafactorSchedule(other, 0.5)

    before = [schedule.get_lr() for schedule in schedules]
    run(mine)
    run(other)

    assert before[0] == before[1] == [0.5]
    assert schedules[0].get_lr() == schedules[1].get_lr()
    with pytest.raises(ValueError, match="Cannot combine"):
        ours.Adafactor(weights(), lr=1.0)


def test_lion_equals_the_update_rule_of_its_paper() -> None:
    rate, (beta1, beta2), decay = 1e-2, (0.9, 0.99), 0.1
    expected, moments = [item.detach().clone() for item in weights()], [torch.zeros_like(item) for item in weights()]
    for step in range(12):
        for weight, moment, gradient in zip(expected, moments, gradients(step), strict=True):
            update = (beta1 * moment + (1 - beta1) * gradient).sign()
            weight -= rate * (update + decay * weight)
            moment.mul_(beta2).add_((1 - beta2) * gradient)

    outcome = run(ours.Lion(weights(), lr=rate, betas=(beta1, beta2), weight_decay=decay))

    assert all(torch.allclose(first, second, atol=1e-6) for first, second in zip(outcome, expected, strict=True))


def schedule_free_by_hand(kind: str, steps: int, warmup: int, decay: float) -> tuple[list[Tensor], list[Tensor]]:
    """Returns (x, y) of the recursion in the paper, where x is computed at every step."""
    rate, beta, beta2, eps = 0.05, 0.9, 0.95, 1e-8
    z = [weight.detach().double() for weight in weights()]
    x, squares = [weight.clone() for weight in z], [torch.zeros_like(weight) for weight in z]
    total = largest = 0.0
    for step in range(steps):
        now = rate * min(1.0, (step + 1) / warmup)
        largest = max(largest, now)
        total += largest**2
        share = largest**2 / total
        for at, gradient in enumerate(item.double() for item in gradients(step)):
            y = (1 - beta) * z[at] + beta * x[at]
            direction = gradient
            if kind == "adamw":
                squares[at] = beta2 * squares[at] + (1 - beta2) * gradient**2
                direction = gradient / ((squares[at] / (1 - beta2 ** (step + 1))).sqrt() + eps)
            z[at] = z[at] - now * (direction + decay * y)
            x[at] = (1 - share) * x[at] + share * z[at]
    return x, [(1 - beta) * first + beta * second for first, second in zip(z, x, strict=True)]


def schedule_free(kind: str, **options: Any) -> Any:
    if kind == "adamw":
        return ours.AdamWScheduleFree(weights(), lr=0.05, betas=(0.9, 0.95), **options)
    return ours.SGDScheduleFree(weights(), lr=0.05, momentum=0.9, **options)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_schedule_free_weights_are_y_in_training_and_x_in_evaluation(kind: str, decay: float) -> None:
    optimizer = schedule_free(kind, warmup_steps=4, weight_decay=decay)
    optimizer.train()
    outcome = run(optimizer)
    x, y = schedule_free_by_hand(kind, 12, 4, decay)

    assert all(torch.allclose(first.double(), second, atol=1e-5) for first, second in zip(outcome, y, strict=True))
    optimizer.eval()
    optimizer.eval()
    assert all(torch.allclose(first.double(), second, atol=1e-5) for first, second in zip(outcome, x, strict=True))
    optimizer.train()
    assert all(torch.allclose(first.double(), second, atol=1e-5) for first, second in zip(outcome, y, strict=True))


def test_schedule_free_keeps_gradients_and_refuses_a_step_in_evaluation() -> None:
    optimizer = schedule_free("adamw")
    with pytest.raises(RuntimeError, match=r"call optimizer.train\(\)"):
        run(optimizer)
    optimizer.train()
    run(optimizer, steps=1)
    remaining_gradients = [parameter.grad for parameter in optimizer.param_groups[0]["params"]]
    assert equal(remaining_gradients, gradients(0))


@pytest.mark.parametrize("kind", ["adamw", "sgd", "lion"])
def test_resumed_optimizer_states_continue_bit_identically(kind: str) -> None:
    def optimizer() -> Any:
        return ours.Lion(weights(), lr=1e-2) if kind == "lion" else schedule_free(kind, warmup_steps=4)

    straight, source, resumed = optimizer(), optimizer(), optimizer()
    for item in (straight, source):
        if kind != "lion":
            item.train()
    whole, half = run(straight), run(source, steps=5)
    with torch.no_grad():
        for parameter, value in zip(resumed.param_groups[0]["params"], half, strict=True):
            parameter.copy_(value)
    resumed.load_state_dict(source.state_dict())

    assert equal(run(resumed, start=5), whole)


def test_schedule_free_requires_warmup_as_a_number_of_steps() -> None:
    kind, kwargs = optimizer_class(arguments("schedule_free_adamw", "r=0.5", warmup_steps=10, weight_decay=0.1))

    assert kind is ours.AdamWScheduleFree
    assert (kwargs["warmup_steps"], kwargs["r"], kwargs["weight_decay"]) == (10, 0.5, 0.1)
    with pytest.raises(ValueError, match=r"warmup_steps 0.1.*schedule_free_sgd"):
        optimizer_class(arguments("schedule_free_sgd", warmup_steps=0.1))


@pytest.mark.parametrize("kind", [ours.Lion, ours.AdamWScheduleFree, ours.Adafactor])
def test_sparse_gradients_are_refused(kind: Any) -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    optimizer = kind(embedding.parameters())
    getattr(optimizer, "train", lambda: None)()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ours.Lion(weights(), lr=-1), "lr must be 0 or more"),
        (lambda: ours.Lion(weights(), betas=(0.9, 1.0)), "betas must lie"),
        (lambda: ours.AdamWScheduleFree(weights(), betas=(0.0, 0.9)), "beta1 between 0 and 1"),
        (lambda: ours.SGDScheduleFree(weights(), momentum=0.0), "momentum between 0 and 1"),
        (lambda: ours.SGDScheduleFree(weights(), lr=-1.0), "lr of SGDScheduleFree"),
    ],
)
def test_optimizer_arguments_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
