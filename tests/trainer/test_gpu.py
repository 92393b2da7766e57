"""The promises of the CPU hold on a real GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.strategies import single
from footplate.trainer.strategies.device_copy import StreamCopy, moved
from footplate.trainer.trainer import Trainer
from tests.trainer.runs import run


@pytest.mark.gpu
def test_a_bf16_run_on_a_gpu_resumes_bit_identically(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", steps=20, bf16=True)
    run(tmp_path / "cut", steps=20, stop_at=7, bf16=True)

    after = run(tmp_path / "cut", steps=20, resume=True, bf16=True)

    assert after.losses == whole.losses[7:]
    assert after.weights == whole.weights
    assert after.rng == whole.rng


@pytest.mark.gpu
def test_the_host_does_not_wait_for_the_gpu_between_logs(tmp_path: Path) -> None:
    logs = RefuseToWait()
    args = TrainingArguments(
        str(tmp_path),
        max_steps=40,
        logging_steps=10,
        save_strategy="no",
        bf16=True,
        include_num_input_tokens_seen="all",
    )
    try:
        Trainer(toy.gpt(), args, train_dataset=toy.text(), callbacks=[logs]).train()
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert logs.seen == 4


class RefuseToWait(TrainerCallback):
    """Any operation that makes the host wait for the device raises, but in the steps that are logged."""

    seen = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_log:
            torch.cuda.set_sync_debug_mode("default")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
        self.seen += "loss" in logs
        torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_batch_is_copied_to_the_gpu_while_it_computes() -> None:
    device, batch = torch.device("cuda", 0), {"x": torch.arange(1 << 20).pin_memory()}
    beside, is_computed = StreamCopy(device), torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    is_computed.record()

    copied = beside(batch)
    beside.stream.synchronize()

    assert not is_computed.query(), "the copy waited for a computation that has nothing to do with it"
    assert copied["x"].device == device
    assert copied["x"].cpu().equal(batch["x"])


@pytest.mark.gpu
def test_copying_batches_on_a_second_stream_does_not_change_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = run(tmp_path / "beside", steps=30)
    monkeypatch.setattr(single, "StreamCopy", lambda device: partial(moved, device=device))
    in_line = run(tmp_path / "in line", steps=30)

    assert beside.losses == in_line.losses
    assert beside.weights == in_line.weights
