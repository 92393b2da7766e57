"""Evaluations: the speed over 20,000 samples of a small model, and the memory over a thousand sequences of logits.

A turn is one evaluation. It shows its time, what it found, and what memory it took at its height beyond the start's.
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
            # What was given back is faulted in again, page by page: a clock is no place for that.
            start, clock = _reset_peak() if memory else 0, Clock()
            found = evaluate(whole)
            wall, cpu = clock.read()
            turn({"wall": wall, "cpu": cpu, "found": found, "bytes": _peak() - start})


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
    """Sums of losses and of right answers; what was computed of a batch is let go of with it."""
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
        found = trainer.evaluate(data)
        return {"loss": found["eval_loss"], "accuracy": found["eval_accuracy"]}

    return evaluate


def _accuracy(shifts: int) -> Callable[[Any], dict[str, float]]:
    def accuracy(seen: Any) -> dict[str, float]:
        labels = seen.label_ids[..., shifts:]
        best = seen.predictions.argmax(-1)[..., : labels.shape[-1]]
        return {"accuracy": float((best == labels).mean())}

    return accuracy


def _give_back_at_once() -> None:
    """What is freed goes back to the system, from a megabyte on: so what is held is what is counted."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_threshold, 1 << 20)
    libc.mallopt(m_trim_threshold, 1 << 20)


def _reset_peak() -> int:
    """What this process holds now; its highest is counted from here."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024
