"""Measures evaluations: the speed of 20,000 samples of a small model, and the memory of a thousand sequences.

A turn is one evaluation. Its result has the time, the metrics, and the peak memory above that of the start.
"""

from __future__ import annotations

import ctypes
import gc
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from bench.loops.race import Clock, Turn, side
from bench.loops.scripted import arguments
from bench.loops.work import WORKS, Rows, Work, points_around_centres, tokens

Evaluate = Callable[[Any], dict[str, float]]


def run(loop: str, turn: Turn, *, work: str, samples: int, batch: int, memory: bool = False) -> None:
    whole = tokens(samples) if work == "gpt" else points_around_centres(samples)
    few = Rows(**{name: column[:batch] for name, column in whole.columns.items()})
    if memory:
        _give_back_at_once()
    with tempfile.TemporaryDirectory() as folder:
        evaluate = _evaluation(loop, replace(WORKS[work], batch=batch), folder)
        while True:
            evaluate(few)
            # The heap is trimmed only if memory is measured, because requesting trimmed pages again takes time.
            start, clock = _reset_peak() if memory else 0, Clock()
            metrics = evaluate(whole)
            wall, cpu = clock.read()
            turn({"wall": wall, "cpu": cpu, "found": metrics, "bytes": _peak() - start})


def _evaluation(loop: str, work: Work, folder: str) -> Evaluate:
    model, shifts = work.fresh_model(), int("GPT" in work.what)
    if loop == "raw":
        return lambda data: _by_hand(model.eval(), _loader(data, work), shifts)
    if loop == "accelerate":
        accelerator = Accelerator(cpu=True)
        prepared = accelerator.prepare(model).eval()
        return lambda data: _by_hand(
            prepared, accelerator.prepare(_loader(data, work)), shifts, accelerator.gather_for_metrics
        )
    return _by_script(loop, work, model, shifts, folder)


def _loader(data: Any, work: Work) -> Any:
    return DataLoader(data, work.batch, collate_fn=work.collate)  # type: ignore[arg-type]


def _by_hand(model: nn.Module, loader: Any, shifts: int, gather: Any = lambda values: values) -> dict[str, float]:
    """Sums losses and right answers. The outputs of a batch are freed before the next one."""
    total, right, count, samples = 0.0, 0, 0, 0
    with torch.no_grad():
        for batch in loader:
            output = model(**batch)
            labels = batch["labels"][..., shifts:]
            best = output["logits"].argmax(-1)[..., : labels.shape[-1]]
            best, labels = gather((best, labels))
            right += int((best == labels).sum())
            count += labels.numel()
            samples += len(labels)
            total += float(output["loss"]) * len(labels)
    return {"loss": total / samples, "accuracy": right / count}


def _by_script(loop: str, work: Work, model: nn.Module, shifts: int, folder: str) -> Evaluate:
    names = side(loop)
    own: dict[str, Any] = {"metrics": ["accuracy"]} if loop == "ours" else {"compute_metrics": _accuracy(shifts)}
    args = arguments(names, folder, work, per_device_eval_batch_size=work.batch)
    trainer = names.Trainer(model, args, data_collator=work.collate, **own)

    def evaluate(data: Any) -> dict[str, float]:
        metrics = trainer.evaluate(data)
        return {"loss": metrics["eval_loss"], "accuracy": metrics["eval_accuracy"]}

    return evaluate


def _accuracy(shifts: int) -> Callable[[Any], dict[str, float]]:
    def accuracy(prediction: Any) -> dict[str, float]:
        labels = prediction.label_ids[..., shifts:]
        best = prediction.predictions.argmax(-1)[..., : labels.shape[-1]]
        return {"accuracy": float((best == labels).mean())}

    return accuracy


def _give_back_at_once() -> None:
    """Makes the heap return freed blocks of a megabyte and more at once, so that only used memory is measured."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_threshold, 1 << 20)
    libc.mallopt(m_trim_threshold, 1 << 20)


def _reset_peak() -> int:
    """Returns the memory of this process now, and restarts the measurement of its peak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024
