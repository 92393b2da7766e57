"""Components for tests that misbehave, registered like those of any package."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HUB_DISABLE_TELEMETRY
from torch import nn

import footplate


class _Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, n: int, at: int, do: str, seconds: float, marker: str) -> None:
        self.n, self.at, self.do, self.seconds, self.marker = n, at, do, seconds, marker

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.seconds)
        if index == self.at:
            FAULTS[self.do](self.marker)
        return {"x": torch.ones(8), "labels": torch.ones(4)}


def data(
    n: int = 10_000, at: int = -1, do: str = "nothing", seconds: float = 0.0, marker: str = "", noise: float = 0.0
) -> Any:
    """Returns rows of ones. Reading the row `at` triggers the fault `do`."""
    return _Data(n, at, do, seconds, marker)


def model() -> nn.Module:
    """Returns a model of one layer."""
    return Linear()


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def broken_model() -> nn.Module:
    """Raises an error instead of returning a model."""
    raise ValueError("this model has no layers")


def _raise(marker: str) -> None:
    raise ValueError("a bad sample")


def _segfault(marker: str) -> None:
    ctypes.string_at(0)


def _hang(marker: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def _print_secrets(marker: str) -> None:
    """Prints what training can see of the node's environment, memory and descriptors."""
    print("environment", sorted(os.environ), flush=True)
    print("visible", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    print("folder", Path.cwd(), flush=True)
    print("telemetry", "off" if HF_HUB_DISABLE_TELEMETRY else "on", flush=True)
    sockets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and _is(fd)]
    print("open", sorted(sockets), flush=True)
    print("héllo \x00 wörld", file=sys.stderr, flush=True)


def _note(marker: str) -> None:
    footplate.note(f"a bad sample at {marker}")
    footplate.note("x" * 3_000_000)


def _is(fd: str) -> bool:
    try:
        os.fstat(int(fd))
    except OSError:
        return False
    return True


def _write_invalid_lines(marker: str) -> None:
    """Writes lines that are not events on every socket that this process has inherited."""
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) > 2 and _is(fd) and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
            deep = b'{"a":' * 900 + b"1" + b"}" * 900
            os.write(int(fd), b'{"kind":[],"data":{}}\n{"kind":"log","data":' + deep + b"}\n[]\nnothing\n")


FAULTS = {
    "nothing": lambda marker: None, "raise": _raise, "segfault": _segfault, "hang": _hang, "note": _note,
    "print_secrets": _print_secrets, "write_invalid_lines": _write_invalid_lines,
}  # fmt: skip
