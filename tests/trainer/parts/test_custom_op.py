"""Tests a custom op in C++ and CUDA in the Trainer, with its own gradient and under autocast."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """Compiles the extension once. Later runs find the result in the temporary folder."""
    spec = importlib.util.spec_from_file_location("smooth_abs", REPOSITORY / "examples" / "custom-op" / "smooth_abs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.extension()
    return module


@pytest.mark.matrix
def test_the_custom_op_and_its_gradient_equal_the_formula(example: ModuleType) -> None:
    x = torch.linspace(-2, 2, 41, dtype=torch.double, requires_grad=True)

    expected = (x.detach() ** 2 + 0.3**2).sqrt() - 0.3
    assert torch.allclose(example.smooth_abs(x, 0.3), expected)
    assert torch.autograd.gradcheck(lambda item: example.smooth_abs(item, 0.3), (x,))
    assert example.smooth_abs(torch.ones(3, 2).t()).shape == (2, 3)
    with pytest.raises(RuntimeError, match="delta must be above 0"):
        example.smooth_abs(x, 0.0)


@pytest.mark.matrix
def test_the_custom_op_computes_in_float32_under_autocast(example: ModuleType) -> None:
    layer, x = torch.nn.Linear(4, 4), torch.full((2, 4), 1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(x)
        out = example.smooth_abs(half)

    assert (half.dtype, out.dtype) == (torch.bfloat16, torch.float32)
    out.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.matrix
def test_a_model_with_the_custom_op_trains(example: ModuleType, tmp_path: Path, bf16: bool) -> None:
    losses = example.train(str(tmp_path), bf16=bf16, use_cpu=True)

    assert len(losses) == 30
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])


@pytest.mark.gpu
def test_the_custom_op_gives_the_same_results_on_a_gpu(example: ModuleType) -> None:
    x = torch.randn(1000, device="cuda", dtype=torch.double, requires_grad=True)
    cpu = x.detach().cpu().requires_grad_()

    here, there = example.smooth_abs(cpu), example.smooth_abs(x)
    here.sum().backward()
    there.sum().backward()

    assert x.grad is not None
    assert cpu.grad is not None
    assert torch.allclose(here, there.cpu())
    assert torch.allclose(cpu.grad, x.grad.cpu())
    assert torch.autograd.gradcheck(lambda item: example.smooth_abs(item), (x[:20].detach().requires_grad_(),))
    assert example.smooth_abs(torch.empty(0, device="cuda")).numel() == 0
