"""Sharded checkpoints, in the format of torch's distributed checkpoints.

Each process writes its shard. Any number of processes can read the checkpoint.

pytorch_model_fsdp_0/   the weights, by name
optimizer_0/            the optimizer's tensors, under "parameter number/name"
optimizer_groups.pt     the optimizer's other state
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, Placement, Replicate, zeros
from torch.optim import Optimizer

from footplate.contract.errors import CheckpointCorrupt
from footplate.trainer import checkpoint as files

MODEL, OPTIMIZER, GROUPS = files.PIECES, files.OPTIMIZER_PIECES, "optimizer_groups.pt"


def write(folder: Path, model: nn.Module, state: dict[str, Any] | None, *, leads: bool) -> None:
    """Writes this process's shard. All processes must call this function, and all raise if one cannot write."""
    _save({"model": model.state_dict()}, folder / MODEL)
    if state is None:
        return
    tensors: dict[str, Any] = {}
    other_values: dict[str, Any] = {}
    for at, values in state["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else other_values)[f"{at}/{name}"] = value
    _save(tensors, folder / OPTIMIZER)
    if leads:
        files.save_tensors({"param_groups": state["param_groups"], "rest": other_values}, folder / GROUPS)


def load_model(model: nn.Module, folder: Path) -> None:
    """Loads the weights of a sharded checkpoint into a model, which may be sharded itself."""
    _load({"model": model.state_dict()}, folder / MODEL)


def load_optimizer(optimizer: Optimizer, folder: Path) -> dict[str, Any]:
    groups = files.load_tensors(folder, GROUPS)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    described = FileSystemReader(folder / OPTIMIZER).read_metadata().state_dict_metadata
    tensors = {name: _empty(metadata, parameters[int(name.split("/")[0])]) for name, metadata in described.items()}
    _load(tensors, folder / OPTIMIZER)
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **groups["rest"]}.items():
        at, name = key.split("/", 1)
        state.setdefault(int(at), {})[name] = value
    return {"state": state, "param_groups": groups["param_groups"]}


def _empty(metadata: Any, parameter: Tensor) -> Tensor:
    """Returns an empty tensor to read into, split over the processes as the optimizer's tensor was."""
    if not isinstance(metadata, TensorStorageMetadata):
        raise CheckpointCorrupt(f"the checkpoint's {OPTIMIZER} holds an entry that is not a tensor")
    size, dtype = metadata.size, metadata.properties.dtype
    if isinstance(parameter, DTensor) and size:
        placements = placements_of(size, parameter)
        return zeros(*size, dtype=dtype, device_mesh=parameter.device_mesh, placements=placements)
    return torch.zeros(size, dtype=dtype)


def placements_of(shape: torch.Size, parameter: DTensor) -> Sequence[Placement]:
    """Returns how an optimizer's tensor of this shape is split over the processes: as its parameter, or not at all.

    Adafactor's means of rows and columns, for example, are whole in every process.
    """
    return parameter.placements if shape == parameter.shape else [Replicate()] * parameter.device_mesh.ndim


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


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides torch's warnings, for example the one about a checkpoint of a single process."""
    logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        yield
