"""Checkpoints in pieces: each process writes its own, with torch's distributed checkpoints; any number reads.

pytorch_model_fsdp_0/   the weights, under their names
optimizer_0/            its state, under "parameter number/name"
optimizer_groups.pt     what of the optimizer is no tensor
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, zeros
from torch.optim import Optimizer

from footplate.contract.errors import CheckpointCorrupt
from footplate.trainer import checkpoint as files

MODEL, OPTIMIZER, GROUPS = files.PIECES, files.OPTIMIZER_PIECES, "optimizer_groups.pt"


def write(folder: Path, model: nn.Module, state: dict[str, Any] | None, *, leads: bool) -> None:
    """Called by all processes; one that cannot write raises in all of them."""
    _save({"model": model.state_dict()}, folder / MODEL)
    if state is None:
        return
    tensors: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for at, values in state["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else rest)[f"{at}/{name}"] = value
    _save(tensors, folder / OPTIMIZER)
    if leads:
        files.save_tensors({"param_groups": state["param_groups"], "rest": rest}, folder / GROUPS)


def load_model(model: nn.Module, folder: Path) -> None:
    """In place, whole or in pieces, whichever the model is."""
    _load({"model": model.state_dict()}, folder / MODEL)


def load_optimizer(optimizer: Optimizer, folder: Path) -> dict[str, Any]:
    groups = files.load_tensors(folder, GROUPS)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    described = FileSystemReader(folder / OPTIMIZER).read_metadata().state_dict_metadata
    tensors = {name: _empty(told, parameters[int(name.split("/")[0])]) for name, told in described.items()}
    _load(tensors, folder / OPTIMIZER)
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **groups["rest"]}.items():
        at, name = key.split("/", 1)
        state.setdefault(int(at), {})[name] = value
    return {"state": state, "param_groups": groups["param_groups"]}


def _empty(told: Any, parameter: Tensor) -> Tensor:
    """To be read into: cut as the parameter is, where it is as large as that."""
    if not isinstance(told, TensorStorageMetadata):
        raise CheckpointCorrupt(f"{OPTIMIZER} holds something that is no tensor")
    size, dtype = told.size, told.properties.dtype
    if isinstance(parameter, DTensor) and size == parameter.shape:
        return zeros(*size, dtype=dtype, device_mesh=parameter.device_mesh, placements=parameter.placements)
    return torch.zeros(size, dtype=dtype)


def _save(state: dict[str, Any], folder: Path) -> None:
    try:
        with _quiet():
            save(state, storage_writer=FileSystemWriter(folder))
    except Exception as error:
        raise files.CannotSave(f"{folder.name}: {error}") from error


def _load(state: dict[str, Any], folder: Path) -> None:
    try:
        with _quiet():
            load(state, storage_reader=FileSystemReader(folder))
    except Exception as error:
        raise CheckpointCorrupt(f"{folder.parent.name}: {folder.name} cannot be read ({error})") from error


class _quiet(warnings.catch_warnings):
    """torch says of one process that it is one."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
        return entered
