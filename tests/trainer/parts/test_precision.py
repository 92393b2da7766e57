"""Tests half precision, activation checkpointing, noise on embeddings, and compiled models."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations import neftune as theirs

from footplate.components import toy
from footplate.trainer.activations import checkpoint_activations, uncheckpoint_activations
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.model_changes import add_noise
from footplate.trainer.precision import LossScale, autocast, compile_model, evaluating_in, precision_of, use_tf32
from footplate.trainer.strategies.fp32_outputs import Fp32Outputs
from footplate.trainer.trainer import Trainer


def test_the_precision_follows_from_the_arguments_bf16_and_fp16() -> None:
    assert [
        precision_of(SimpleNamespace(bf16=b, fp16=f)) for b, f in ((False, False), (True, False), (False, True))
    ] == [
        "no",
        "bf16",
        "fp16",
    ]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("no", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_autocast_computes_in_the_requested_precision(precision: Any, dtype: torch.dtype) -> None:
    layer = nn.Linear(4, 4)
    with autocast(precision, torch.device("cpu")):
        assert layer(torch.ones(2, 4)).dtype is dtype
    assert layer.weight.dtype is torch.float32


def test_tf32_is_refused_without_a_gpu_that_supports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.backends.fp32_precision  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="--tf32 requires Ampere"):
        use_tf32(True)
    use_tf32(False)
    use_tf32(None)
    assert torch.backends.fp32_precision == before  # type: ignore[attr-defined]


# The outputs


class WithLogits(nn.Module):
    """Returns logits that the loss does not need, and records whether they still exist during backward."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 1)
        self.logits_in_backward: list[Any] = []

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.line(x)
        logits = hidden * 2
        logits_ref = weakref.ref(logits)
        hidden.register_hook(lambda _: self.logits_in_backward.append(logits_ref()))
        return {"loss": hidden.float().square().mean(), "logits": logits}


def trained_with_logits(folder: Path, kind: type[Trainer] = Trainer, **options: Any) -> WithLogits:
    model = WithLogits()
    args = TrainingArguments(str(folder), max_steps=2, bf16=True, use_cpu=True, save_strategy="no", disable_tqdm=True)
    kind(model, args, train_dataset=toy.regression(n=16), **options).train()
    return model


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns a list to which every value is added that is converted to float32."""
    values: list[Any] = []
    convert = Fp32Outputs.convert

    def recorded(self: Fp32Outputs, value: Any) -> Any:
        result = convert(self, value)
        values.extend([value] if result is not value else [])
        return result

    monkeypatch.setattr(Fp32Outputs, "convert", recorded)
    return values


def test_a_step_neither_converts_nor_keeps_logits_that_nothing_reads(tmp_path: Path, converted: list[Any]) -> None:
    model = trained_with_logits(tmp_path)

    assert model.logits_in_backward == [None, None]
    assert not any(isinstance(value, dict) for value in converted)


def test_code_that_reads_the_outputs_of_a_step_gets_them_in_float32(tmp_path: Path) -> None:
    types: list[torch.dtype] = []

    class Reads(Trainer):
        def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            types.append(outputs["logits"].dtype)
            return (loss, outputs) if return_outputs else loss

    def compute(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        types.append(outputs["logits"].dtype)
        return outputs["logits"].square().mean()

    class Hooked(Trainer):
        def create_optimizer(self, *args: Any) -> Any:
            self.model.register_forward_hook(lambda _, __, outputs: types.append(outputs["logits"].dtype))
            return super().create_optimizer(*args)

    trained_with_logits(tmp_path, Reads)
    trained_with_logits(tmp_path, Hooked)
    trained_with_logits(tmp_path, compute_loss_func=compute)

    assert types == [torch.float32] * 6


# The loss scale


def scaled(clip: bool, factor: float = 1.0) -> tuple[nn.Linear, LossScale]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    scale = LossScale(torch.optim.SGD(model.parameters(), lr=0.1), "cpu", init_scale=2.0**10, growth_interval=3)
    for _ in range(2):
        scale.backward(model(torch.ones(2, 3)).square().mean() * factor)
        if clip:
            scale.clip(model.parameters(), 0.5)
        scale.step()
        model.zero_grad()
    return model, scale


@pytest.mark.parametrize("clip", [True, False])
def test_loss_scaling_does_not_change_the_steps(clip: bool) -> None:
    model, scale = scaled(clip)
    torch.manual_seed(0)
    plain = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        plain(torch.ones(2, 3)).square().mean().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        plain.zero_grad()

    assert torch.allclose(model.weight, plain.weight)
    assert not scale.skipped


def test_callbacks_see_gradients_without_the_loss_scale(tmp_path: Path) -> None:
    def largest(folder: str, max_grad_norm: float) -> list[float]:
        class Reads(TrainerCallback):
            def on_pre_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
                values.append(max(float(parameter.grad.abs().max()) for parameter in model.parameters()))

        values: list[float] = []
        args = TrainingArguments(
            str(tmp_path / folder), fp16=True, use_cpu=True, max_steps=3, logging_steps=2, save_strategy="no",
            max_grad_norm=max_grad_norm, disable_tqdm=True,
        )  # fmt: skip
        torch.manual_seed(0)
        Trainer(toy.mlp(), args, train_dataset=toy.regression(n=32), callbacks=[Reads()]).train()
        return values

    assert largest("without-clipping", 0.0) == largest("with-clipping", 1e9)


def test_an_overflowing_step_is_skipped_and_the_scale_is_halved() -> None:
    model, scale = scaled(clip=True)
    before, size = model.weight.detach().clone(), scale.scaler.state_dict()["scale"]

    scale.backward(model(torch.ones(2, 3)).sum() * float("inf"))
    norm = scale.clip(model.parameters(), 1.0)
    scale.step()

    assert not torch.isfinite(norm)
    assert torch.equal(model.weight, before)
    assert (scale.skipped, scale.scaler.state_dict()["scale"]) == (True, size / 2)


def test_the_loss_scale_is_restored_from_its_state() -> None:
    _, scale = scaled(clip=False)
    other = LossScale(scale.optimizer, "cpu")
    other.scaler.load_state_dict(scale.scaler.state_dict())

    assert other.scaler.state_dict() == scale.scaler.state_dict()
    assert other.scaler.state_dict()["_growth_tracker"] == 2


def test_weights_are_bit_identical_after_an_evaluation_in_half_precision() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weight = model[0].weight
    with evaluating_in(model, "bf16") as half:
        assert half[0](torch.ones(2, 3, dtype=torch.bfloat16)).dtype is torch.bfloat16  # type: ignore[index]

    assert model[0].weight is weight
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with evaluating_in(model, "no") as same:
        assert same[0].weight.dtype is torch.float32  # type: ignore[index,union-attr]


# Activations


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
        self.calls = 0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        self.calls += 1
        return x + scale * torch.tanh(self.inner(x))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(5, 8), nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return x.sum()


def gradients(model: nn.Module) -> list[Tensor]:
    torch.manual_seed(3)
    model(torch.tensor([[0, 1, 2]])).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("every", "twice"), [(1, 4), (2, 2)])
def test_activation_checkpointing_reruns_layers_and_keeps_the_gradients(every: int, twice: int) -> None:
    torch.manual_seed(1)
    plain = Stack()
    saving = Stack()
    saving.load_state_dict(plain.state_dict())

    assert checkpoint_activations(saving, {"every_n_layers": every}) == twice
    expected, result = gradients(plain), gradients(saving)

    assert all(torch.equal(first, second) for first, second in zip(result, expected, strict=True))
    assert sum(block.calls for block in saving.blocks) == 4 + twice  # type: ignore[union-attr,misc]
    assert saving.state_dict().keys() == plain.state_dict().keys()
    assert all(type(block) is Block for block in saving.blocks)


def test_activation_checkpointing_is_inactive_in_evaluation_and_after_switching_off() -> None:
    model = Stack()
    checkpoint_activations(model)
    checkpoint_activations(model)
    model.eval()
    gradients(model)
    assert [block.calls for block in model.blocks] == [1] * 4
    model.train()
    uncheckpoint_activations(model)
    gradients(model)
    assert [block.calls for block in model.blocks] == [2] * 4


def test_a_model_with_its_own_checkpointing_method_gets_the_arguments() -> None:
    messages: list[Any] = []

    class Newer(nn.Module):
        def activation_checkpointing_enable(self, activation_checkpointing_kwargs: Any = None) -> None:
            messages.append(activation_checkpointing_kwargs)

    class Older(nn.Module):
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
            messages.append(gradient_checkpointing_kwargs)

    class Oldest(nn.Module):
        def gradient_checkpointing_enable(self) -> None:
            messages.append("nothing")

    for kind in (Newer, Older, Oldest):
        assert checkpoint_activations(kind(), {"use_reentrant": True}) == 0
    assert messages == [{"use_reentrant": True}, {"use_reentrant": True}, "nothing"]


def test_the_layers_with_weights_of_a_sequential_model_are_checkpointed() -> None:
    assert checkpoint_activations(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))) == 2
    with pytest.raises(ValueError, match="found no layers in Linear"):
        checkpoint_activations(nn.Linear(2, 2))


# Noise


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x)  # type: ignore[no-any-return]


def test_the_embedding_noise_is_the_same_random_draw_as_in_transformers() -> None:
    torch.manual_seed(0)
    model, tokens = Words(), torch.tensor([[0, 1, 2], [3, 4, 0]])
    result = []
    for add in (add_noise, theirs.activate_neftune):
        handle = add(model, 5.0)
        torch.manual_seed(7)
        result.append(model(tokens))
        handle.remove()

    assert torch.equal(result[0], result[1])
    assert not torch.equal(result[0], model(tokens))


def test_embedding_noise_is_off_in_evaluation_and_refused_without_an_embedding() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(5, 8))
    add_noise(model, 5.0)
    model.eval()
    assert torch.equal(model[1](torch.tensor([[1]])), model[1].weight[1][None, None])
    model.train()
    assert not torch.equal(model[1](torch.tensor([[1]])), model[1].weight[1][None, None])
    with pytest.raises(ValueError, match="Linear has none"):
        add_noise(nn.Linear(2, 2), 1.0)


# Compilation


def test_compiling_a_model_keeps_the_names_of_its_weights_and_its_gradients() -> None:
    model = Stack()
    names, expected = list(model.state_dict()), gradients(model)
    model.zero_grad()

    compile_model(model, backend="eager")
    result = gradients(model)

    assert list(model.state_dict()) == names
    assert all(torch.allclose(first, second) for first, second in zip(result, expected, strict=True))


def test_an_unknown_compile_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'inducter'.*inductor"):
        compile_model(Stack(), backend="inducter")


# On a GPU


@pytest.mark.gpu
def test_fp16_training_on_a_gpu_adapts_its_loss_scale() -> None:
    torch.manual_seed(0)
    model = nn.Linear(16, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    # With a larger scale, the first gradients overflow.
    scale = LossScale(optimizer, "cuda", init_scale=2.0**8, growth_interval=2)
    losses = []
    for _ in range(6):
        with autocast("fp16", torch.device("cuda")):
            loss = model(torch.ones(4, 16, device="cuda")).float().square().mean()
        scale.backward(loss)
        scale.clip(model.parameters(), 1.0)
        scale.step()
        model.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    assert not scale.skipped
    assert scale.scaler.state_dict()["scale"] == 2.0**8 * 2**3


@pytest.mark.gpu
def test_tf32_on_a_gpu_can_be_switched_on_and_off() -> None:
    torch.manual_seed(0)
    a = torch.randn(256, 256, device="cuda")
    exact = (a.double() @ a.double()).float()
    use_tf32(True)
    coarse = float((a @ a - exact).abs().max())
    use_tf32(False)
    fine = float((a @ a - exact).abs().max())
    assert fine * 10 < coarse


@pytest.mark.gpu
def test_activation_checkpointing_on_a_gpu_saves_memory_and_keeps_gradients() -> None:
    def peak(saves: bool) -> tuple[int, Tensor]:
        torch.manual_seed(0)
        layers = [nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(512, 512), nn.Tanh()))) for _ in range(12)]
        model = nn.Sequential(*layers).cuda()
        if saves:
            checkpoint_activations(model)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model(torch.ones(4096, 512, device="cuda")).sum().backward()
        return torch.cuda.max_memory_allocated() - before, model[0][0].weight.grad

    plain, expected = peak(saves=False)
    saving, result = peak(saves=True)
    assert saving < 0.6 * plain
    assert torch.equal(result, expected)


@pytest.mark.gpu
def test_a_compiled_model_on_a_gpu_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
    x = torch.randn(32, 64, device="cuda")
    model(x).square().mean().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    compile_model(model)
    model(x).square().mean().backward()
    assert all(torch.allclose(p.grad, g, atol=1e-5) for p, g in zip(model.parameters(), expected, strict=True))
