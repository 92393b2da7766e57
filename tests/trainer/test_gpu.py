"""On a real GPU: the same promises as on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.runs import run


@pytest.mark.gpu
def test_a_run_in_bf16_on_a_gpu_resumes_as_the_same_run(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", steps=20, bf16=True)
    run(tmp_path / "cut", steps=20, stop_at=7, bf16=True)

    after = run(tmp_path / "cut", steps=20, resume=True, bf16=True)

    assert after.losses == whole.losses[7:]
    assert after.weights == whole.weights
    assert after.rng == whole.rng
