"""Sets, reads and restores the random generators that training and its data use."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from footplate.contract.arguments import TrainingArguments


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seeds Python, NumPy, and torch on every device."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seeds all generators, and selects algorithms with bit-identical results, even if they are slower."""
    # cuBLAS reads its variable when CUDA is first used.
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
    set_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def seed_all(args: TrainingArguments) -> None:
    (enable_full_determinism if args.full_determinism else set_seed)(args.seed)


def data_seed(args: TrainingArguments) -> int:
    """Returns the seed for the order of the data."""
    return args.seed if args.data_seed is None else args.data_seed


def host_rng() -> dict[str, Any]:
    """Returns the state of every generator that reading data in this process may draw from."""
    return {"python": random.getstate(), "numpy": numpy.random.get_state(), "cpu": torch.get_rng_state()}


def set_host_rng(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])


def rng_state() -> dict[str, Any]:
    """Returns the state of every generator that training may draw from."""
    devices = {"cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_initialized() else {}  # type: ignore[no-untyped-call]
    return {**host_rng(), **devices}


def set_rng_state(state: Mapping[str, Any]) -> None:
    set_host_rng(state)
    if "cuda" in state and torch.cuda.is_available():
        devices = state["cuda"] if isinstance(state["cuda"], list) else [state["cuda"]]
        if len(devices) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(devices)
        else:
            torch.cuda.set_rng_state(devices[0])


def host_fingerprint() -> tuple[Any, ...]:
    """Returns a value that changes when a number is drawn from Python's, NumPy's or torch's CPU generator."""
    state: Any = numpy.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2], torch.get_rng_state().numpy().tobytes()
