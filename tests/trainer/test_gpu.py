"""Tests on a real GPU what other tests prove on a CPU."""

from __future__ import annotations

import math
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from footplate.components import toy
from footplate.components.hf_models import causal_lm
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.strategies import single
from footplate.trainer.strategies.device_copy import StreamCopy, moved
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import Events, Fingerprint, StopAt, fingerprint
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.launch import launched, read
from tests.trainer.runs import run

HAS_BITSANDBYTES = find_spec("bitsandbytes") is not None
HAS_LIGER = find_spec("liger_kernel") is not None

ARGUMENTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "tf32 and a fused optimizer": {"tf32": True, "optim": "adamw_torch_fused"},
    "compiled": {"bf16": True, "torch_compile": True},
    "saved in the background": {"bf16": True, "save_in_background": True},
    **(
        {"8-bit AdamW": {"optim": "adamw_bnb_8bit"}, "paged": {"optim": "paged_adamw_8bit"}} if HAS_BITSANDBYTES else {}
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_run_on_a_gpu_resumes_bit_identically(tmp_path: Path, arguments: dict[str, Any]) -> None:
    whole = run(tmp_path / "whole", steps=20, **arguments)
    run(tmp_path / "cut", steps=20, stop_at=7, **arguments)

    after = run(tmp_path / "cut", steps=20, resume=True, **arguments)

    assert after.losses == whole.losses[7:]
    assert after.weights == whole.weights
    assert after.optimizer == whole.optimizer
    assert after.rng == whole.rng


LLAMA = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 32,
}  # fmt: skip
LORA = {"r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj"]}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("llama")
    set_seed(0)
    causal_lm(None, config=LLAMA).save_pretrained(folder)
    return str(folder)


def tuned(
    folder: Path, model: dict[str, Any], *, stop_at: int | None = None, resume: bool = False, **arguments: Any
) -> Fingerprint:
    """Trains a Llama for 12 steps on rows of 32 tokens."""
    values = {"learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no", "bf16": True, **arguments}
    args = TrainingArguments(str(folder), max_steps=12, full_determinism=True, **values)
    set_seed(7)
    events = Events()
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (256, 32))]
    callbacks = [events, *([StopAt(stop_at)] if stop_at else [])]
    trainer = Trainer(causal_lm(None, **model), args, train_dataset=rows, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return fingerprint(trainer, events.losses)


@pytest.mark.gpu
@pytest.mark.parametrize("model", [{"config": {"attention_dropout": 0.1}}, {"attn_implementation": "flex_attention"}])
def test_a_llama_on_a_gpu_resumes_bit_identically(tmp_path: Path, llama: str, model: dict[str, Any]) -> None:
    assert_equal_after_a_stop(tmp_path, {"path": llama, **model}, gradient_checkpointing=True)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_BITSANDBYTES, reason="needs bitsandbytes")
@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_an_adapter_on_quantized_weights_resumes_bit_identically(tmp_path: Path, llama: str, quantization: str) -> None:
    model = {"path": llama, "quantization": quantization, "dtype": "bfloat16", "peft": LORA}
    assert_equal_after_a_stop(tmp_path, model, optim="paged_adamw_8bit", gradient_checkpointing=True)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_LIGER, reason="needs liger-kernel")
def test_liger_kernels_train_as_the_plain_model_and_resume_bit_identically(tmp_path: Path, llama: str) -> None:
    plain = tuned(tmp_path / "plain", {"path": llama})

    kernels = assert_equal_after_a_stop(tmp_path, {"path": llama}, use_liger_kernel=True)

    assert kernels.losses[0] == pytest.approx(plain.losses[0], rel=1e-2)
    assert kernels.losses[-1] == pytest.approx(plain.losses[-1], rel=5e-2)


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
def test_a_llama_in_fp8_trains_as_in_bf16_and_resumes_bit_identically(
    tmp_path: Path, llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tuned(tmp_path / "plain", {"path": llama})
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")

    fp8 = assert_equal_after_a_stop(tmp_path, {"path": llama}, bf16=False)

    assert fp8.losses != plain.losses
    assert fp8.losses == pytest.approx(plain.losses, rel=5e-2)


def assert_equal_after_a_stop(folder: Path, model: dict[str, Any], **arguments: Any) -> Fingerprint:
    whole = tuned(folder / "whole", model, **arguments)
    tuned(folder / "cut", model, stop_at=5, **arguments)

    after = tuned(folder / "cut", model, resume=True, **arguments)

    assert all(map(math.isfinite, whole.losses))
    assert after.losses == whole.losses[5:]
    assert after.weights == whole.weights
    assert after.optimizer == whole.optimizer
    return whole


@pytest.mark.gpu
def test_a_batch_too_large_for_the_gpu_is_split_without_a_change_to_the_loss(tmp_path: Path) -> None:
    class Greedy(nn.Module):
        """Allocates 12 GiB for each row, so that no GPU holds a batch of 32."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = toy.mlp(hidden=16)

        def forward(self, x: Tensor, labels: Tensor) -> Any:
            torch.empty(len(x), 12 << 30, dtype=torch.uint8, device=x.device)
            return self.inner(x=x, labels=labels)

    def losses(batch: int, accumulation: int, **arguments: Any) -> list[float]:
        set_seed(7)
        events = Events()
        args = TrainingArguments(
            str(tmp_path), max_steps=4, logging_steps=1, save_strategy="no", per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation, **arguments,
        )  # fmt: skip
        Trainer(Greedy(), args, train_dataset=toy.regression(n=128), callbacks=[events]).train()
        return events.losses

    assert losses(32, 1, auto_find_batch_size=True) == pytest.approx(losses(2, 16), rel=1e-4)


SHARED = {
    "ddp": {"ddp_backend": "gloo"},
    "ddp in bf16": {"ddp_backend": "gloo", "bf16": True},
}


@pytest.mark.gpu
@pytest.mark.parametrize("arguments", SHARED.values(), ids=SHARED)
def test_two_processes_that_share_a_gpu_train_like_a_single_process(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """NCCL wants a GPU for each process, so Gloo exchanges the gradients here."""
    values = {"run": "trained", "text": True, "use_cpu": False, **arguments}
    launched(tmp_path / "two", [{**values, "name": "two"}])
    bf16 = arguments.get("bf16", False)

    alone = scenarios.trained(tmp_path / "one", name="one", text=True, use_cpu=False, bf16=bf16)

    for rank_run in read(tmp_path / "two", 0, 2):
        assert "error" not in rank_run, rank_run.get("trace")
        assert rank_run["losses"] == pytest.approx(alone["losses"], rel=1e-2 if bf16 else 1e-4)


ZERO: dict[str, Any] = {
    "zero 2": {"stage": 2},
    "zero 2, optimizer on the host": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "zero 3": {"stage": 3},
}


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed")
@pytest.mark.parametrize("zero", ZERO.values(), ids=ZERO)
def test_deepspeed_trains_on_a_gpu_and_resumes_bit_identically(tmp_path: Path, zero: dict[str, Any]) -> None:
    settings = {
        "zero_optimization": zero, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto",
        "zero_force_ds_cpu_optimizer": False,
    }  # fmt: skip
    values = {"name": "zero", "text": True, "use_cpu": False, "bf16": True, "deepspeed": settings}

    launched(tmp_path, [{"run": "resumed", "at": 5, **values}], world=1)

    [rank_run] = read(tmp_path, 0, 1)
    assert "error" not in rank_run, rank_run.get("trace")
    assert rank_run["first"]["losses"] + rank_run["rest"]["losses"] == rank_run["whole"]["losses"]
    assert rank_run["rest"]["weights"] == rank_run["whole"]["weights"]
    assert rank_run["whole"]["losses"][-1] < rank_run["whole"]["losses"][0]


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

    assert logs.log_count == 4


class RefuseToWait(TrainerCallback):
    """Makes torch raise an error if an operation waits for the GPU, except in steps that log."""

    log_count = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_log:
            torch.cuda.set_sync_debug_mode("default")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
        self.log_count += "loss" in logs
        torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_batch_is_copied_to_the_gpu_while_it_computes() -> None:
    device, batch = torch.device("cuda", 0), {"x": torch.arange(1 << 20).pin_memory()}
    beside, is_computed = StreamCopy(device), torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    is_computed.record()

    on_device = beside(batch)
    beside.stream.synchronize()

    assert not is_computed.query(), "the copy waited for an unrelated computation"
    assert on_device["x"].device == device
    assert on_device["x"].cpu().equal(batch["x"])


@pytest.mark.gpu
def test_copying_batches_on_a_second_stream_does_not_change_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = run(tmp_path / "beside", steps=30)
    monkeypatch.setattr(single, "StreamCopy", lambda device: partial(moved, device=device))
    in_line = run(tmp_path / "in line", steps=30)

    assert beside.losses == in_line.losses
    assert beside.weights == in_line.weights
